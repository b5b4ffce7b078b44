"""The leaderboard as one HTML file that opens offline: style and script inside, nothing loaded, everything escaped.

The tables are complete without the script, which only sorts, filters and saves. A content-security policy admits this
one script by its hash and no network at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from suite.contract.card import Card
from suite.guard.calibration import Calibration
from suite.judge.claims import COLUMNS, WORDS, Verdict, counts
from suite.judge.claims import table as claims_table
from suite.judge.rows import Row, Value, as_dict
from suite.show import overview, stacks, studies
from suite.show.board import (
    HOW_TO_READ,
    Column,
    boards,
    change,
    decimals,
    ends,
    failure_lines,
    number,
    remarks,
    setup_text,
    shown_interval,
    shown_number,
    summarised,
    text,
)
from suite.show.charts import curves, pareto, span, whisker
from suite.show.overview import Place
from suite.show.studies import Studied


def render(
    rows: Sequence[Row],
    problems: Sequence[str] = (),
    judged: Sequence[Verdict] = (),
    calibrations: Mapping[str, Calibration] | None = None,
    cards: Mapping[str, Card] | None = None,
    studied: Sequence[Studied] = (),
) -> str:
    """The whole page. ``problems`` are the store's sentences about lines that it could not read, ``judged`` the
    verdicts on the papers' claims, ``calibrations`` of machines by their key, ``cards`` of techniques by their id,
    ``studied`` what studies found, each with what changed since."""
    cards = cards or {}
    folder = files(__package__)
    script = (folder / "board.js").read_text("utf-8")
    head = summarised(rows)
    shown = boards(rows)
    found = overview.places(shown)
    tried = stacks.stacks(shown)
    asked = studies.placed(studied, cards, found)
    sentences = [*HOW_TO_READ]
    if head.stale:
        sentences.append(f"† stale, since code changed: {head.stale} of the rows. leantrain run measures them again.")
    if problems:
        sentences.append(f"Lines of the records that could not be read and are left out: {len(problems)}.")
    summary = f"{head.rows} rows from {head.records} replicates, {head.seeds} a row, newest record {head.newest}."
    parts = [
        *([overview.coverage(found, cards)] if found else []),
        *(_board([place for place in found if place.board is board], cards) for board in shown),
        stacks.html(tried),
        studies.html(asked, cards),
        *([_claims(judged, cards)] if judged else []),
        *([overview.techniques(found, judged, cards, studies.links(asked))] if found else []),
    ]
    return Template((folder / "board.html").read_text("utf-8")).substitute(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=(folder / "board.css").read_text("utf-8"),
        script=script,
        summary=escape(summary if rows else "No records yet. Measure some: leantrain run"),
        machines=overview.machines(rows, calibrations or {}),
        reading=_list(map(escape, sentences)),
        contents=_contents(found, bool(tried), bool(asked), bool(judged)),
        selects="".join(_select(name, values) for name, values in _choices(rows, cards).items()),
        boards="\n".join(filter(None, parts)),
        data=_data(rows),
    )


def _contents(found: Sequence[Place], tried: bool, asked: bool, judged: bool) -> str:
    """Links to the sections; a board's link carries the board's conditions, to be filtered with it."""
    boards_of = {place.anchor: place for place in found}
    items = ['<li><a href="#coverage">What was measured where</a></li>'] if found else []
    items += [
        f'<li{_conditions(place.row)}><a href="#{anchor}">{escape(place.board.title)}</a></li>'
        for anchor, place in boards_of.items()
    ]
    items += ['<li><a href="#stacks">Stacks</a></li>'] if tried else []
    items += ['<li><a href="#studies">Studies</a></li>'] if asked else []
    items += ['<li><a href="#claims">Claims of the papers</a></li>'] if judged else []
    items += ['<li><a href="#techniques">Techniques</a></li>'] if found else []
    return "".join(items)


FILTERS = ("baseline", "recipe", "size", "machine")  # of a board; the category is a row's


def _conditions(row: Row) -> str:
    """Attributes by which the script filters."""
    values = (row.conditions.baseline, row.conditions.recipe, row.conditions.size, row.machine.name)
    return "".join(f' data-{name}="{escape(value)}"' for name, value in zip(FILTERS, values, strict=True))


def _choices(rows: Sequence[Row], cards: Mapping[str, Card]) -> dict[str, list[str]]:
    """The values that a filter offers."""
    return {
        "baseline": sorted({row.conditions.baseline for row in rows}),
        "recipe": sorted({row.conditions.recipe for row in rows}),
        "size": sorted({row.conditions.size for row in rows}),
        "machine": sorted({row.machine.name for row in rows}),
        "category": sorted({each for row in rows for each in overview.categories(row.stack, cards)}),
    }


def _select(name: str, values: Sequence[str]) -> str:
    """Left out where it offers no choice."""
    if len(values) < 2:
        return ""
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return f'<label>{name} <select data-filter="{name}"><option value="">all</option>{options}</select></label>\n'


def _data(rows: Sequence[Row]) -> str:
    """JSON that cannot end its script element; seven digits, and no fields without a value."""
    thin = [_thinned(as_dict(row)) for row in rows]
    words = json.dumps(thin, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return words.replace("<", "\\u003c")


def _thinned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thinned(each) for key, each in value.items() if each is not None and each != ""}
    if isinstance(value, list):
        return [_thinned(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _list(items: Iterable[str]) -> str:
    """List items of markup."""
    return "".join(f"<li>{item}</li>" for item in items)


def _board(found: Sequence[Place], cards: Mapping[str, Card]) -> str:
    """One board's section from its places."""
    board, anchor = found[0].board, found[0].anchor
    ranked = [place for place in found if not place.row.failed]
    columns = board.columns()
    table = _table(ranked, columns, cards) if ranked else ""
    missing = _list(f"{escape(title)}: n/a ({escape(reason)})" for title, reason in board.empty_columns())
    noted = [(place.row, said) for place in ranked if (said := remarks(place.row, columns))]
    notes = _list(f"<code>{escape(row.stack)}</code>: {escape('; '.join(said))}" for row, said in noted)
    failed = "".join(
        f'<li id="{place.identity}"{_named(place, cards)}><a href="#{place.technique}"><code>{escape(place.row.stack)}'
        f"</code></a>: {escape('; '.join(failure_lines(place.row)))}</li>"
        for place in found
        if place.row.failed
    )
    figures = [(place, drawn) for place in ranked if (drawn := curves(place.row))]
    grid = "".join(
        f"<figure{_named(place, cards)}>{drawn}<figcaption><code>{escape(place.row.stack)}</code></figcaption></figure>"
        for place, drawn in figures
    )
    links = {place.row.stack: place.technique for place in ranked}
    plot = pareto([place.row for place in ranked], links)
    parts = [
        f'<section class="board" id="{anchor}"{_conditions(board.rows[0])}><h2>{escape(board.title)}</h2>',
        f"<p>{escape(board.subtitle)} {escape(board.detectable)}</p>",
        table,
        f"<ul>{missing}</ul>" if missing else "",
        _fold("Notes", f"<ul>{notes}</ul>") if notes else "",
        f"<h3>No numbers</h3><ul>{failed}</ul>" if failed else "",
        _fold("Time, memory and quality", f"{plot}{PARETO_LEGEND}") if plot else "",
        _fold("Loss curves", f'{CURVES_LEGEND}<div class="grid">{grid}</div>') if grid else "",
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def _named(place: Place, cards: Mapping[str, Card]) -> str:
    """Attributes by which the script filters what belongs to one stack."""
    kinds = " ".join(overview.categories(place.row.stack, cards))
    return f' data-name="{escape(place.row.stack)}" data-category="{escape(kinds)}"'


def _claims(judged: Sequence[Verdict], cards: Mapping[str, Card]) -> str:
    summary = "; ".join(f"{count} {word}" for word, count in counts(judged).items())
    head = "".join(f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in COLUMNS)
    lines = []
    for word, name, *others in claims_table(judged):
        cells = "".join(f'<td class="words" data-sort="{escape(words)}">{escape(words)}</td>' for words in others)
        first = f'<td class="words" data-sort="{WORDS.index(word)}">{escape(word)}</td>'
        title = f'<th scope="row" data-sort="{escape(name)}"><code>{escape(name)}</code></th>'
        kinds = " ".join(overview.categories(name.partition(".")[0], cards))
        lines.append(f'<tr data-category="{escape(kinds)}">{first}{title}{cells}</tr>')
    body = "\n".join(lines)
    return (
        f'<section id="claims"><h2>Claims of the papers</h2><p>{escape(summary)}. Ratios are costs: below 1 is better.'
        '</p><div class="scroll" role="region" tabindex="0" aria-labelledby="claims-title"><table class="claims">'
        f'<caption id="claims-title">Claims of the papers</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div></section>"
    )


PARETO_LEGEND = (
    '<p class="legend">● reached the reference\'s loss within 1 %, ▲ ended worse. Ringed: no other technique, nor the '
    "reference, is as good in time, memory and loss. Left and low is better.</p>"
)
CURVES_LEGEND = (
    '<p class="legend"><span class="reference">╌╌</span> reference, <span class="technique">━━</span> technique; '
    "a line for each seed. Test loss against cost, set-up included.</p>"
)


def _fold(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _table(ranked: Sequence[Place], columns: Sequence[Column], cards: Mapping[str, Card]) -> str:
    anchor, board = ranked[0].anchor, ranked[0].board
    titles = ["tier", "technique", *(f"{each.title}\xa0{each.arrow}" for each in columns), "set-up", "seeds"]
    head = "".join(
        f'<th scope="col"{_sorted_first(position)}><button type="button">{escape(title)}</button></th>'
        for position, title in enumerate(titles)
    )
    spans = {
        column.metric: span(i for place in ranked if (i := shown_interval(column, column.value(place.row))))
        for column in columns
    }
    body = "\n".join(_line(order, place, columns, spans, cards) for order, place in enumerate(ranked))
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}-title"><table>'
        f'<caption id="{anchor}-title">{escape(board.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _sorted_first(position: int) -> str:
    return ' aria-sort="ascending"' if position == 0 else ""


def _line(
    order: int, place: Place, columns: Sequence[Column], spans: dict[str, float], cards: Mapping[str, Card]
) -> str:
    row = place.row
    tried = len(row.seeds) + len({each.seed for each in row.failures})
    seeds = str(tried) if tried == len(row.seeds) else f"{len(row.seeds)} of {tried}"
    mark = '<abbr title="stale">†</abbr>' if row.stale else ""
    control = " (A/A)" if row.stack == row.reference else ""
    setup = f"{row.setup.estimate:.6g}" if row.setup else ""
    cells = [
        f'<td data-sort="{order}">{escape(place.tier)}</td>',
        f'<th scope="row" data-sort="{escape(row.stack)}"><a href="#{place.technique}"><code>{escape(row.stack)}</code>'
        f"</a>{mark}{control}</th>",
        *(_cell(column, column.value(row), spans[column.metric]) for column in columns),
        f'<td data-sort="{setup}">{escape(setup_text(row))}</td>',
        f'<td data-sort="{len(row.seeds)}">{escape(seeds)}</td>',
    ]
    stale = " data-stale" if row.stale else ""
    return f'<tr id="{place.identity}"{_named(place, cards)}{stale}>{"".join(cells)}</tr>'


def _cell(column: Column, value: Value, half_width: float) -> str:
    if not value.known:
        why = escape(value.reason)
        return f'<td data-sort="" class="{value.kind}" title="{why}">{escape(text(column, value))}</td>'
    interval = shown_interval(column, value)
    shown = shown_number(column, value)
    mark = "=" if value.kind == "exact" else "×" if column.speedup else ""
    drawn = whisker(interval, half_width) if interval else ""
    brackets = f' <span class="ends">{escape(ends(interval))}</span>' if ends(interval) else ""
    says = "; ".join(filter(None, (change(column, value), value.note)))
    note = f' title="{escape(says)}"' if says else ""
    return (
        f'<td data-sort="{shown:.6g}" class="{value.kind}"{note}>{drawn}<span class="number">'
        f"{mark}{number(shown, decimals(interval))}</span>{brackets}</td>"
    )
