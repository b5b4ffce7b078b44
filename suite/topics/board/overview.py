"""Shows what one board cannot show: the matrix of all techniques.

Every row has a place on the page, with an identity of its own to link to, whatever records call things.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from markupsafe import Markup

from suite.entries.card import Card, Good
from suite.judge.metrics import METRICS, Metric, MetricValue
from suite.judge.rows import Row, of_version
from suite.record.job import Spelling
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
from suite.show.pages.markup import fragments
from suite.show.pages.places import PlacedRow, kinds
from suite.show.pictures.charts import whisker
from suite.topics.at_scale import answer
from suite.topics.at_scale.answer import AtPaperSize, SizedCell
from suite.topics.board.drawn import macros
from suite.topics.published_quality import quality_on_page

# the matrix ---------------------------------------------------------------------------------------------------------

DRAWN = macros("matrix")
AXIS = math.log(2)
LEANS = {1: "better", -1: "worse", 0: ""}


def matrix(
    placed: Sequence[PlacedRow],
    cards: Mapping[str, Card],
    sized: Mapping[str, AtPaperSize] = MappingProxyType({}),
    further: Markup = Markup(),  # noqa: B008  it is frozen
) -> Markup:
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
    rows = [spot.row for spot in placed]
    legends = DRAWN.legends(matrices.alarms_in_words(rows), matrices.SCOPE, matrices.OLDER)
    goals, missing = DRAWN.goals(answer.GOALS), unmeasured(rows, cards)
    return DRAWN.section(_verdicts(placed, cards), goals, further, parts, legends, missing, len(cards))


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

    @cached_property
    def has_others(self) -> bool:
        """Tells whether somebody published the quality of one of them at scale: else there is no column for it."""
        return any(quality_on_page.column_cell(stack).words for stack in {*self.every, *self.cards})


def _part(placed: Sequence[PlacedRow], known: LineSources, position: int) -> Markup:
    """Draws the matrix of one recipe, size and machine, with its answers above."""
    by_row = {id(spot.row): spot for spot in placed}
    whole = matrices.matrix((spot.row for spot in placed), known.goods)
    costs = [metric for metric in matrices.COSTS if any(entry.cost(metric.name) for entry in whole.entries)]
    has_mean = not known.sized and any(entry.mean for entry in whole.entries)  # there is no room for all
    heads = [
        *((title, DRAWN.attribute("sized"), largest) for title, largest in answer.heads(known.sized)),
        *([(quality_on_page.COLUMN, DRAWN.attribute("sized"), False)] if known.has_others else []),
        *((whole.title(column), fragments.data({"baseline": column}), True) for column in whole.columns),
        *([("mean", fragments.data({"baseline": ""}), True)] if has_mean else []),
        *((f"{metric.heading}\xa0{metric.arrow}", DRAWN.attribute("cost"), False) for metric in costs),
        ("in words", "", False),
    ]
    titles = Markup("").join([fragments.head(["technique"]), *(DRAWN.head(*head) for head in heads)])
    lines, order = [], 0
    for title, entries in whole.groups:
        lines.append(DRAWN.group(title, order + 0.5, len(heads) + 1 - len(costs)))
        for entry in entries:
            order += 1
            rows = {column: [by_row[id(row)] for row in rows] for column, rows in entry.cells.items()}
            lines.append(_entry(entry, rows, whole.columns, costs, has_mean, known, order))
    if position == 0:
        lines += _unmeasured_lines(known, len(heads) - len(costs), order, len(costs))
    shown = [spot.row for spot in placed]
    at = shown[0].conditions
    return DRAWN.part(
        {"recipe": at.recipe, "size": at.size, "machine": shown[0].machine.name},
        whole.shared,
        f"{matrices.standing(shown)} {matrices.scope(shown)}",
        DRAWN.answers([_answer(best, by_row) for best in whole.answers]),
        fragments.table(f"answer-{position}", f"Every technique: {whole.shared}", titles, lines, "answer"),
    )


def _entry(
    entry: matrices.MatrixEntry,
    rows: Mapping[str, Sequence[PlacedRow]],
    columns: Sequence[str],
    costs: Sequence[Metric],
    has_mean: bool,
    known: LineSources,
    order: int,
) -> Markup:
    section = next(iter(rows.values()))[0].technique
    own, shown = known.sized.get(entry.stack, answer.NOTHING), list(entry.best.values())
    cells = [
        fragments.row_head(entry.stack, fragments.link(section, fragments.code(entry.stack))),
        *map(_sized, answer.cells(own, shown, known.every.get(entry.stack, shown), known.sized)),
        *_by_others(entry.stack, known),
        *(
            _headline_cell(rows[column], column, entry.versions.get(column, ""), entry.good)
            if column in rows
            else DRAWN.empty(column)
            for column in columns
        ),
        *([_mean_cell(entry.mean, entry.split_over > 1)] if has_mean else []),
        *(
            fragments.cell(entry.cost(metric.name), _worst(entry, metric.name), _cost_kind(entry, metric.name))
            for metric in costs
        ),
        fragments.cell(entry.brief, order, "words", entry.sentence if entry.sentence != entry.brief else ""),
    ]
    values = {"category": kinds(entry.stack, known.cards), "name": entry.stack, "position": order}
    return fragments.row(cells, values | answer.goals(own, shown))


def _sized(content: SizedCell) -> Markup:
    """Draws a cell that says on a small screen, where no head stands above it, what it is; its brackets stand in a line
    of their own."""
    shown, _, ends = content.words.partition(" [")
    values = {"sort": content.sort, "label": content.label}
    return DRAWN.sized(shown, ends, values, f"sized {content.kind}".strip(), content.title)


def _by_others(stack: str, known: LineSources) -> list[Markup]:
    """Draws the cell of what others published at scale, where there is such a column."""
    content = quality_on_page.column_cell(stack)
    drawn = SizedCell(quality_on_page.COLUMN, content.words, str(content.sort or ""), title=content.title)
    return [_sized(drawn)] if known.has_others else []


def _unmeasured_lines(known: LineSources, columns: int, order: int, costs: int) -> list[Markup]:
    """Draws a heading and a line for each technique that nothing was measured of here: its counts at the papers' sizes.
    ``columns``: without those of the first, and of the ``costs``."""
    missing = unmeasured((row for rows in known.every.values() for row in rows), known.cards)
    if not missing:
        return []
    lines = [DRAWN.group("Not measured here yet", order + 0.5, columns + 1)]
    width = columns - len(answer.heads(known.sized)) - known.has_others - 1
    for name in missing:
        order += 1
        own, card = known.sized.get(name, answer.NOTHING), known.cards[name]
        values = {"category": card.category, "name": name, "position": order, "unmeasured": ""}
        words = f"Not measured yet; its paper promises {matrices.GROUPS[card.good].partition(':')[0].lower()}."
        cells = [
            fragments.row_head(name, fragments.code(name)),
            *map(_sized, answer.cells(own, (), (), known.sized)),
            *_by_others(name, known),
            DRAWN.unmeasured(width, costs),
            fragments.cell(words, order, "words"),
        ]
        lines.append(fragments.row(cells, values | answer.goals(own, ())))
    return lines


Best = tuple[str, str, str]  # an anchor, a stack and its number
AnswerInPage = tuple[str, str, bool, Best | None, Best | None, Best | None]


def _answer(best: matrices.Answer, by_row: Mapping[int, PlacedRow]) -> AnswerInPage:
    """Returns, for who has half a minute, a column, its title, whether it is decided, and what is best for time, best
    for memory, and does not help."""

    def named(row: Row | None, metric: Metric) -> Best | None:
        if row is None:
            return None
        value = row.value(metric.name)
        shown = f"{mark(value, metric.direction).lstrip('=')}{number(shown_number(value, metric.direction))}"
        return by_row[id(row)].technique, row.stack, shown

    return (
        best.column,
        f"{best.column} {best.version}".strip(),
        best.decided,
        named(best.time[0] if best.time else None, HEADLINE),
        named(best.memory, METRICS["peak_tensor_bytes"]),
        named(best.no_help, HEADLINE),
    )


def _verdicts(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> Markup:
    """Draws a button for each verdict, by which the script filters the matrix, and in which it counts its rows."""
    goods = {id: card.good for id, card in cards.items()}
    said = {matrices.verdict(spot.row, matrices.sold(spot.row.stack, goods)) for spot in placed}
    said |= {"mixed"} if {"better", "worse"} <= said else set()
    shown = [verdict for verdict in matrices.VERDICTS if verdict not in matrices.RARE or verdict in said]
    return DRAWN.verdicts([(slug(verdict), verdict) for verdict in shown])


def unmeasured(rows: Iterable[Row], cards: Mapping[str, Card]) -> list[str]:
    """List the techniques that stand in no row: neither alone, nor in a stack, nor as the reference."""
    measured = {name for row in rows for name in (*Spelling(row.stack).names, row.reference)}
    return sorted(set(cards) - measured)


def _headline_cell(placed: Sequence[PlacedRow], column: str, version: str, good: Good | None) -> Markup:
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
    return DRAWN.headline(
        {"sort": sort, "baseline": column, "verdict": matrices.verdict(first.row, good)},
        f"{value.kind} {LEANS[matrices.surely(first.row)]}".strip(),
        _hovered(first.row, value),
        whisker(interval, AXIS) if interval else "",
        fragments.link(first.technique, shown),
        fragments.unverified(unverified_text(first.row)),
        (version, matrices.OLDER) if version else None,
        [spot.identity for spot in others],
        ends(interval),
    )


def _mean_cell(value: MetricValue | None, is_split: bool) -> Markup:
    """Draws the mean; without colour where it is sooner on more hardware."""
    if value is None:
        return DRAWN.empty("")
    interval = shown_interval(value, HEADLINE.direction)
    shown = shown_number(value, HEADLINE.direction)
    return DRAWN.mean(
        {"sort": f"{shown:.6g}", "baseline": ""},
        f"measured {LEANS[min(leaning(value), 0) if is_split else leaning(value)]}".strip(),
        f"{ends(interval)}; geometric mean over the baselines",
        f"{mark(value, HEADLINE.direction)}{number(shown, decimals(interval))}",
        ends(interval),
    )


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
