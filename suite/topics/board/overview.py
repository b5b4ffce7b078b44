"""Shows what one board cannot show: the matrix of all techniques.

Every row has a place on the page, with an identity of its own to link to, whatever records call things.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from suite.entries.card import Card, Good
from suite.judge.metrics import METRICS, Metric, MetricValue
from suite.judge.rows import Row, of_version
from suite.record.job import Spelling
from suite.record.text import in_html
from suite.show.described import slug
from suite.show.pages import matrix as matrices
from suite.show.pages.board import (
    HEADLINE,
    change,
    decimals,
    ends,
    evidence_text,
    leaning,
    mark,
    number,
    shown_interval,
    shown_number,
    unverified_text,
)
from suite.show.pages.markup import (
    cell,
    code,
    data,
    folded,
    head,
    items,
    link,
    row_head,
    table,
    unverified,
)
from suite.show.pages.places import PlacedRow, kinds
from suite.show.pictures.charts import whisker
from suite.topics.at_scale import answer
from suite.topics.at_scale.answer import AtPaperSize, SizedCell
from suite.topics.published_quality import quality_on_page

# the matrix ---------------------------------------------------------------------------------------------------------

AXIS = math.log(2)
LEANS = {1: "better", -1: "worse", 0: ""}


def matrix(
    placed: Sequence[PlacedRow],
    cards: Mapping[str, Card],
    sized: Mapping[str, AtPaperSize] = MappingProxyType({}),
    further: str = "",
) -> str:
    """Draw every technique in a line: what a larger model would take, then what was measured here, its intervals on one
    axis, a matrix for each recipe, size and machine; those that were not measured stand last in the first. ``further``:
    markup above them."""
    by_row = {id(spot.row): spot for spot in placed}
    every: dict[str, list[Row]] = {}
    for spot in placed:
        every.setdefault(spot.row.stack, []).append(spot.row)
    known = LineSources(cards, sized, every)
    parts = [
        _part([by_row[id(row)] for row in of], known, number)
        for number, of in enumerate(matrices.parts(spot.row for spot in placed).values())
    ]
    missing = unmeasured((spot.row for spot in placed), cards)
    absent = f'<ul class="names">{items(map(code, missing))}</ul>'
    return (
        f'<section id="answer">{_verdicts(placed, cards)}{_goals()}{further}{"".join(parts)}'
        f"{_legends([spot.row for spot in placed])}"
        + (
            folded(f"Not measured at all: {len(missing)} of {len(cards)} techniques of the catalogue", absent)
            if missing
            else ""
        )
        + "</section>"
    )


def _legends(rows: Sequence[Row]) -> str:
    """Says what the marks and colours of the matrix say, and how often its bold ones are chance."""
    alarms = matrices.alarms_in_words(rows)
    return (
        (f'<p class="legend">{in_html(alarms)}</p>' if alarms else "")
        + f'<p class="legend">{in_html(matrices.SCOPE)} The axis of each cell ends at ½ and 2; the line is 1. '
        "Form says what a number is: = exact, ≈ <i>modelled</i>, <u>&lt; &gt;</u> a bound, † of older code, "
        f"{matrices.OLDER} of an older version of the baseline, which a pointer names, else measured. Colour says only "
        "that an interval excludes 1. Behind an equivalent budget stands its trend per decade of compute: ↗ or ↘, or ? "
        "where one size alone was measured, or several cannot tell; before it ~ where some of it are bounds.</p>"
    )


@dataclass(frozen=True)
class LineSources:
    """Holds what lines take from beyond their own rows: cards, what is known at the papers' sizes, and all rows by
    stack."""

    cards: Mapping[str, Card]
    sized: Mapping[str, AtPaperSize]
    every: Mapping[str, Sequence[Row]]

    @property
    def goods(self) -> dict[str, Good]:
        return {id: card.good for id, card in self.cards.items()}


def _part(placed: Sequence[PlacedRow], known: LineSources, position: int) -> str:
    """Draws the matrix of one recipe, size and machine, with its answers above."""
    by_row = {id(spot.row): spot for spot in placed}
    whole = matrices.matrix((spot.row for spot in placed), known.goods)
    costs = [metric for metric in matrices.COSTS if any(entry.cost(metric.name) for entry in whole.entries)]
    has_mean = not known.sized and any(entry.mean for entry in whole.entries)  # there is no room for all
    heads = [
        *((title, " data-sized", largest) for title, largest in answer.heads(known.sized)),
        (quality_on_page.COLUMN, " data-sized", False),
        *((whole.title(column), data(baseline=column), True) for column in whole.columns),
        *([("mean", data(baseline=""), True)] if has_mean else []),
        *((f"{metric.heading}\xa0{metric.arrow}", " data-cost", False) for metric in costs),
        ("in words", "", False),
    ]
    titles = head(["technique"]) + "".join(map(_head, heads))
    lines, order = [], 0
    for title, entries in whole.groups:
        lines.append(
            f'<tr class="group" data-position="{order + 0.5}"><th colspan="{len(heads) + 1 - len(costs)}" '
            f'scope="rowgroup">{in_html(title)}</th></tr>'
        )
        for entry in entries:
            order += 1
            rows = {column: [by_row[id(row)] for row in rows] for column, rows in entry.cells.items()}
            lines.append(_entry(entry, rows, whole.columns, costs, has_mean, known, order))
    if position == 0:
        lines += _unmeasured_lines(known, len(heads) - len(costs), order, len(costs))
    shown = [spot.row for spot in placed]
    example = shown[0]
    at = data(recipe=example.conditions.recipe, size=example.conditions.size, machine=example.machine.name)
    caption = f"Every technique: {whole.shared}"
    return (
        f'<div class="part"{at}><h2>Every technique <span class="kind">{in_html(whole.shared)}</span></h2>'
        f'<p class="scope">{in_html(f"{matrices.standing(shown)} {matrices.scope(shown)}")}</p>'
        f"{_answers(whole, by_row)}"
        + table(f"answer-{position}", caption, titles, "\n" + "\n".join(lines) + "\n", "answer")
        + "</div>"
    )


def _head(column: tuple[str, str, bool]) -> str:
    title, attributes, largest = column
    sorted_so = ' aria-sort="ascending"' if title == "in words" else ""
    return (
        f'<th scope="col"{attributes}{sorted_so}{" data-largest" if largest else ""}>'
        f'<button type="button">{in_html(title)}</button></th>'
    )


def _entry(
    entry: matrices.MatrixEntry,
    rows: Mapping[str, Sequence[PlacedRow]],
    columns: Sequence[str],
    costs: Sequence[Metric],
    has_mean: bool,
    known: LineSources,
    order: int,
) -> str:
    section = next(iter(rows.values()))[0].technique
    own, shown = known.sized.get(entry.stack, answer.NOTHING), list(entry.best.values())
    cells = [
        row_head(entry.stack, link(section, code(entry.stack))),
        *map(_sized, answer.cells(own, shown, known.every.get(entry.stack, shown), known.sized)),
        _by_others(entry.stack),
        *(
            _headline_cell(rows[column], column, entry.versions.get(column, ""), entry.good)
            if column in rows
            else f'<td data-sort=""{data(baseline=column)}></td>'
            for column in columns
        ),
        *([_mean_cell(entry.mean, entry.split_over > 1)] if has_mean else []),
        *(
            cell(entry.cost(metric.name), _worst(entry, metric.name), _cost_kind(entry, metric.name))
            for metric in costs
        ),
        cell(entry.brief, order, "words", entry.sentence if entry.sentence != entry.brief else ""),
    ]
    kind = data(
        category=kinds(entry.stack, known.cards), name=entry.stack, position=str(order), **answer.goals(own, shown)
    )
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _sized(content: SizedCell) -> str:
    """Draws a cell that says on a small screen, where no head stands above it, what it is; its brackets stand in a line
    of their own."""
    shown, bracket, ends = content.words.partition(" [")
    band = f' <span class="band">[{in_html(ends)}</span>' if bracket else ""
    hovered = f' title="{in_html(content.title)}"' if content.title else ""
    kind = f"sized {content.kind}".strip()
    return f'<td{data(sort=content.sort, label=content.label)} class="{kind}"{hovered}>{in_html(shown)}{band}</td>'


def _by_others(stack: str) -> str:
    """Draws the cell of what others published at scale."""
    content = quality_on_page.column_cell(stack)
    return _sized(SizedCell(quality_on_page.COLUMN, content.words, str(content.sort or ""), title=content.title))


def _unmeasured_lines(known: LineSources, columns: int, order: int, costs: int) -> list[str]:
    """Draws a heading and a line for each technique that nothing was measured of here: its counts at the papers' sizes.
    ``columns``: without those of the first, and of the ``costs``."""
    missing = unmeasured((row for rows in known.every.values() for row in rows), known.cards)
    if not missing:
        return []
    lines = [
        f'<tr class="group" data-position="{order + 0.5}"><th colspan="{columns + 1}" scope="rowgroup">'
        "Not measured here yet</th></tr>"
    ]
    width = columns - len(answer.heads(known.sized)) - 2
    for name in missing:
        order += 1
        own, card = known.sized.get(name, answer.NOTHING), known.cards[name]
        kind = data(category=card.category, name=name, position=str(order), unmeasured="", **answer.goals(own, ()))
        empty = f'<td colspan="{width}" class="unavailable">not measured</td>' if width else ""
        empty += '<td class="cost"></td>' * costs
        words = f"Not measured yet; its paper promises {matrices.GROUPS[card.good].partition(':')[0].lower()}."
        drawn = "".join(map(_sized, answer.cells(own, (), (), known.sized))) + _by_others(name)
        lines.append(f"<tr{kind}>{row_head(name, code(name))}{drawn}{empty}{cell(words, order, 'words')}</tr>")
    return lines


def _goals() -> str:
    """Draws a button for each goal, by which the script orders the matrix and leaves what serves it."""
    buttons = "".join(
        f'<button type="button" aria-pressed="false" data-goal="{name}">{words}</button>'
        for name, words in answer.GOALS.items()
    )
    return f'<div id="goals" role="group" aria-label="I want" hidden>I want {buttons}</div>'


def _answers(whole: matrices.Matrix, by_row: Mapping[int, PlacedRow]) -> str:
    """Shows the best of each column, for who has half a minute."""

    def named(row: Row, metric: Metric) -> str:
        value = row.value(metric.name)
        shown = f"{mark(value, metric.direction).lstrip('=')}{number(shown_number(value, metric.direction))}"
        return f'{link(by_row[id(row)].technique, code(row.stack))} <span class="number">{in_html(shown)}</span>'

    memory = METRICS["peak_tensor_bytes"]
    entries = []
    for best in whole.answers:
        unknown = "none surely sooner" if best.decided else "not known yet"
        time = f'<span class="better">{named(best.time[0], HEADLINE)}</span>' if best.time else unknown
        least = f'<span class="better">{named(best.memory, memory)}</span>' if best.memory else "none saves any"
        useless = (
            f'<span class="worse">{named(best.no_help, HEADLINE)}</span>'
            if best.no_help
            else "none surely"
            if best.decided
            else "not known yet"
        )
        entries.append(
            f"<li{data(baseline=best.column)}><b>{in_html(f'{best.column} {best.version}'.strip())}</b><dl>"
            f"<dt>best for time here</dt><dd>{time}</dd><dt>best for memory here</dt><dd>{least}</dd>"
            f"<dt>does not help</dt><dd>{useless}</dd></dl></li>"
        )
    return f'<ul class="best">{"".join(entries)}</ul>'


def _verdicts(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> str:
    """Draws a button for each verdict, by which the script filters the matrix, and in which it counts its rows."""
    goods = {id: card.good for id, card in cards.items()}
    said = {matrices.verdict(spot.row, matrices.sold(spot.row.stack, goods)) for spot in placed}
    said |= {"mixed"} if {"better", "worse"} <= said else set()
    buttons = "".join(
        f'<button type="button" class="{slug(verdict)}" aria-pressed="false" data-verdict="{verdict}">'
        f"<b></b> {verdict}</button>"
        for verdict in matrices.VERDICTS
        if verdict not in matrices.RARE or verdict in said
    )
    return f'<div id="verdicts" role="group" aria-label="Show techniques that are" hidden>{buttons}</div>'


def unmeasured(rows: Iterable[Row], cards: Mapping[str, Card]) -> list[str]:
    """List the techniques that stand in no row: neither alone, nor in a stack, nor as the reference."""
    measured = {name for row in rows for name in (*Spelling(row.stack).names, row.reference)}
    return sorted(set(cards) - measured)


def _headline_cell(placed: Sequence[PlacedRow], column: str, version: str, good: Good | None) -> str:
    """Draws the headline of the first row, which leads to the technique's section, and a link to each of the others."""
    first, *others = placed
    value = first.row.value(HEADLINE.name)
    sort = f"{shown_number(value, HEADLINE.direction):.6g}" if value.kind in ("measured", "bound") else ""
    interval = shown_interval(value, HEADLINE.direction)
    if value.kind in ("unavailable", "missed"):
        shown = matrices.word_without_number(first.row)
    else:
        shown = (
            f"{mark(value, HEADLINE.direction)}{number(shown_number(value, HEADLINE.direction), decimals(interval))}"
        )
    brackets = f'<span class="ends">{in_html(ends(interval))}</span>' if ends(interval) else ""
    further = "".join(f" {link(spot.identity, f'+{n}')}" for n, spot in enumerate(others, 1))
    named = f'<abbr title="{in_html(version)}">{matrices.OLDER}</abbr>' if version else ""
    drawn = whisker(interval, AXIS) if interval else ""
    markup = (
        f"{drawn}{link(first.technique, in_html(shown))}{unverified(unverified_text(first.row))}{named}{further}"
        f"{brackets}"
    )
    kind = f"{value.kind} {LEANS[matrices.surely(first.row)]}".strip()
    hovered = in_html(_hovered(first.row, value))
    attributes = data(sort=sort, baseline=column, verdict=matrices.verdict(first.row, good))
    return f'<td{attributes} class="{kind}" title="{hovered}">{markup}</td>'


def _mean_cell(value: MetricValue | None, is_split: bool) -> str:
    """Draws the mean; without colour where it is sooner on more hardware."""
    if value is None:
        return f'<td data-sort=""{data(baseline="")}></td>'
    interval = shown_interval(value, HEADLINE.direction)
    shown = shown_number(value, HEADLINE.direction)
    words = f"{mark(value, HEADLINE.direction)}{number(shown, decimals(interval))}"
    brackets = f'<span class="ends">{in_html(ends(interval))}</span>'
    kind = f"measured {LEANS[min(leaning(value), 0) if is_split else leaning(value)]}".strip()
    attributes = data(sort=f"{shown:.6g}", baseline="")
    title = in_html(f"{ends(interval)}; geometric mean over the baselines")
    return f'<td{attributes} class="{kind}" title="{title}">{in_html(words)}{brackets}</td>'


def _hovered(row: Row, value: MetricValue) -> str:
    """Returns what a cell says to a pointer: interval, evidence, and the seconds and bytes behind."""
    sizes = [
        f"{metric.heading} {sizes}"
        for metric in (METRICS["step_time"], METRICS["peak_tensor_bytes"])
        if (sizes := change(row.value(metric.name), metric.unit))
    ]
    said = [
        ends(shown_interval(value, HEADLINE.direction)),
        matrices.hardware(row),
        evidence_text(row),
        of_version(row),
        value.reason,
        value.note,
        *sizes,
    ]
    return "; ".join(filter(None, said))


def _worst(entry: matrices.MatrixEntry, metric: str) -> str:
    known = [value.number for row in entry.best.values() if (value := row.value(metric)).known]
    return f"{max(known):.6g}" if known else ""


def _cost_kind(entry: matrices.MatrixEntry, metric: str) -> str:
    """Returns a cost's classes: its form, and its colour where every row surely has less, or more, of it, in one
    process."""
    values = [value for row in entry.best.values() if (value := row.value(metric)).known]
    surely = {leaning(value) if f"{value.number:.2f}" != "1.00" else 0 for value in values}
    sure = LEANS[surely.pop()] if len(surely) == 1 and entry.split_over == 1 else ""
    form = "modelled" if any(value.kind == "modelled" for value in values) else ""
    return " ".join(filter(None, ("cost", sure, form)))
