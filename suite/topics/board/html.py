"""Writes the leaderboard as one HTML file that opens offline: style and script inside, nothing loaded, everything
escaped.

What is folded is packed (:mod:`suite.show.packing`), and the script unpacks it where it is opened; without the script
the matrix, its sentences and every title are there. A content-security policy admits this one script by its hash and
no network at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from suite.entries.card import Card
from suite.judge.metrics import Metric
from suite.judge.rows import Row, as_dict
from suite.record.text import in_html
from suite.show.described import Section
from suite.show.packing import Pack, packed
from suite.show.pages import markup, matrix
from suite.show.pages.board import (
    HEADLINE,
    HOW_TO_READ,
    detectable_text,
    failure_lines,
    older_sentence,
    remarks,
    seeds_text,
    setup_text,
    shown_interval,
    summarised,
    timings_text,
    unverified_sentence,
    unverified_text,
)
from suite.show.pages.cells import value_cell
from suite.show.pages.places import PlacedRow, categories, kinds
from suite.show.pages.rendered import as_html
from suite.show.pictures.charts import by_curve, forest, pareto, ruler, span
from suite.show.pictures.drawing import charts_css, colours_css
from suite.topics.at_scale.answer import at_paper_sizes
from suite.topics.board import overview
from suite.topics.board.contents import sections
from suite.topics.board.pointers import pointers
from suite.topics.board.report import Report
from suite.topics.board.sections import techniques
from suite.topics.stacks import stacks_on_board as stacks


def render(report: Report) -> str:
    """Writes the whole page."""
    rows, cards = report.rows, report.cards
    folder = files(__package__)
    script = (folder / "board.js").read_text("utf-8")
    summary = summarised(rows)
    all_boards, placed = report.boards, report.placed
    of_stacks = stacks.stacks(all_boards)
    of_topics = sections(report)
    sentences = [*HOW_TO_READ, *(f"Machine {name}: {facts}." for name, facts in summary.machines)]
    if summary.unverified:
        sentences.append(unverified_sentence(summary.unverified))
    if older := older_sentence(rows):
        sentences.append(older)
    if report.problems:
        sentences.append(f"Lines of the records that could not be read and are left out: {len(report.problems)}.")
    sized = at_paper_sizes(report.paper_scale, report.gpu_times)
    pack = Pack()
    of_boards = "\n".join(
        pack.fold(_board([spot for spot in placed if spot.board is board], report)) for board in all_boards
    )
    parts = [
        techniques(report, placed, pack) if placed else "",
        f'<div id="boards"><h2>Boards</h2>\n{of_boards}</div>' if placed else "",
        *(as_html(section) if section.is_open else pack.fold(as_html(section)) for section in of_topics),
    ]
    further = pointers(report.verdicts, of_stacks, {spot.row.stack: spot.technique for spot in placed})
    style = colours_css() + (folder / "board.css").read_text("utf-8") + charts_css()
    chosen = _chosen(rows)
    selects = _choices(rows, cards)
    return Template((folder / "board.html").read_text("utf-8")).substitute(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        summary=in_html(summary.sentence if rows else "No records yet. Measure some: leantrain run"),
        answer=overview.matrix(placed, cards, sized, further) if placed else "",
        reading=markup.items(map(in_html, sentences)),
        contents=_contents(placed, of_topics),
        selects="".join(_select(name, values, chosen.get(name, "")) for name, values in selects.items()),
        boards="\n".join(filter(None, parts)),
        entries=_entries(placed, cards),
        parts=pack.packed,
        data=packed([_thinned(as_dict(row)) for row in rows]),
    )


def _contents(placed: Sequence[PlacedRow], of_topics: Sequence[Section]) -> str:
    """Writes links to the sections; a board's link carries the board's conditions, to be filtered with it."""
    entries = ['<li><a href="#techniques">Techniques</a></li>'] if placed else []
    first_of_boards = {spot.anchor: spot for spot in placed}
    entries += [
        f"<li{_conditions(spot.row)}>{markup.link(anchor, in_html(spot.board.title))}</li>"
        for anchor, spot in first_of_boards.items()
    ]
    entries += [f"<li>{markup.link(section.anchor, in_html(section.title))}</li>" for section in of_topics]
    return "".join(entries)


def _filters(row: Row) -> dict[str, str]:
    """Returns the values that a board is filtered by; a row is filtered by its category, too."""
    at = row.conditions
    return {"baseline": at.baseline, "recipe": at.recipe, "size": at.size, "machine": row.machine.name}


def _conditions(row: Row) -> str:
    """Writes attributes by which the script filters."""
    return markup.data(**_filters(row))


def _choices(rows: Sequence[Row], cards: Mapping[str, Card]) -> dict[str, list[str]]:
    """Returns the values that a filter offers."""
    names = ("baseline", "recipe", "size", "machine")
    return {name: sorted({_filters(row)[name] for row in rows}) for name in names} | {
        "category": sorted({category for row in rows for category in categories(row.stack, cards)})
    }


def _chosen(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the values that the page shows first, those of its first matrix; empty for all, as of machines where it
    shows several."""
    first = matrix.first(rows)
    if not first:
        return {}
    machines = {row.machine.name for row in first}
    at = first[0].conditions
    return {"recipe": at.recipe, "size": at.size, "machine": machines.pop() if len(machines) == 1 else ""}


def _select(name: str, values: Sequence[str], first: str) -> str:
    """Writes a selection of values; nothing where there is no choice."""
    if len(values) < 2:
        return ""
    options = "".join(
        f'<option value="{in_html(value)}"{" selected" if value == first else ""}>{in_html(value)}</option>'
        for value in values
    )
    return f'<label>{name} <select data-filter="{name}"><option value="">all</option>{options}</select></label>\n'


def _entries(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> str:
    """Writes the script's table: by a board's anchor what its rows are filtered by, for the script, which counts those
    that are packed, too."""
    entries: dict[str, list[dict[str, str]]] = {}
    for spot in placed:
        entry = {"name": spot.row.stack, "category": kinds(spot.row.stack, cards)}
        dated = {"unverified": ""} if _dated(spot.row) and not spot.row.failed else {}
        entries.setdefault(spot.anchor, []).append(entry | dated)
    return json.dumps(entries, separators=(",", ":")).replace("<", "\\u003c")


def _dated(row: Row) -> bool:
    """Tells whether it is hidden with what is unverified or of an older version."""
    return bool(row.unverified or row.newer_version)


def _thinned(value: Any) -> Any:
    """Keeps seven digits, and no fields without a value."""
    if isinstance(value, dict):
        return {key: _thinned(entry) for key, entry in value.items() if entry is not False and entry not in (None, "")}
    if isinstance(value, list):
        return [_thinned(element) for element in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _board(placed: Sequence[PlacedRow], report: Report) -> str:
    """Writes one board's section, from its rows' places: its title and conditions, the rest folded."""
    board, anchor, cards = placed[0].board, placed[0].anchor, report.cards
    ranked = [spot for spot in placed if not spot.row.failed]
    columns = board.columns()
    missing = markup.items(f"{in_html(heading)}: n/a ({in_html(reason)})" for heading, reason in board.empty_columns())
    remarked = [
        (candidate.row.stack, sentences) for candidate in ranked if (sentences := remarks(candidate.row, columns))
    ]
    notes = markup.items(f"{markup.code(stack)}: {in_html('; '.join(sentences))}" for stack, sentences in remarked)
    failed = "".join(
        f'<li id="{spot.identity}"{_named(spot, cards)}>{markup.link(spot.technique, markup.code(spot.row.stack))}'
        f": {in_html('; '.join(failure_lines(spot.row)))}</li>"
        for spot in placed
        if spot.row.failed
    )
    rows, links = (
        [candidate.row for candidate in ranked],
        {candidate.row.stack: candidate.technique for candidate in ranked},
    )
    quality = report.qualities.get(board.rows[0].conditions.baseline, "")
    drawn = (
        ("Time to the same quality, sorted by effect", forest(rows, links), FOREST_LEGEND),
        ("Time and memory", pareto(rows, links), PARETO_LEGEND),
        *(
            (
                "; ".join(filter(None, ("The reference's scaling curve: what each technique's loss is worth", apart))),
                ruler(read_off, links, quality),
                RULER_LEGEND,
            )
            for apart, read_off in by_curve(rows)
        ),
    )
    figures = "".join(
        f'<figure tabindex="0"><h3>{title}</h3>{drawing.svg()}{legend}</figure>'  # on a phone it scrolls
        for title, drawing, legend in drawn
        if drawing
    )
    parts = [
        f"<p>{in_html(board.subtitle)} {in_html(board.detectable)}</p>",
        _table(ranked, columns, cards) if ranked else "",
        f"<ul>{missing}</ul>" if missing else "",
        markup.folded("Notes", f"<ul>{notes}</ul>") if notes else "",
        f"<h3>No numbers</h3><ul>{failed}</ul>" if failed else "",
        f'<div class="plots">{figures}</div>' if figures else "",
    ]
    body = "\n".join(filter(None, parts))
    return (
        f'<section class="board" id="{anchor}"{_conditions(board.rows[0])}><details><summary>{in_html(board.title)}'
        f"</summary>{body}</details></section>"
    )


def _named(placed: PlacedRow, cards: Mapping[str, Card]) -> str:
    """Writes attributes by which the script filters what belongs to one stack."""
    return markup.data(name=placed.row.stack, category=kinds(placed.row.stack, cards))


FOREST_LEGEND = (
    '<p class="legend">Dots with 95 % intervals; ○ without one; arrows are bounds. Right of 1: sooner than the '
    "reference. Coloured where the interval excludes 1.</p>"
)
PARETO_LEGEND = (
    '<p class="legend">● reached the reference\'s loss within 1 %, ▲ ended worse. Ringed: no other technique, nor the '
    "reference, is as good in time, memory and loss. Left and low is better. Coloured where the interval of the time "
    "to the same quality excludes 1.</p>"
)
RULER_LEGEND = (
    '<p class="legend"><span class="reference">━</span> the reference trained at several budgets, each fully decayed: '
    "small dots are its seeds, the line is monotone, its band two standard errors. ● a technique at its equivalent "
    "budget, with its interval: right of 1 it learned more than the reference in as many steps. ▶ ◀ ended beyond the "
    "curve: a bound.</p>"
)


def _table(ranked: Sequence[PlacedRow], columns: Sequence[Metric], cards: Mapping[str, Card]) -> str:
    titles = ["tier", "technique", *(f"{column.heading}\xa0{column.arrow}" for column in columns)]
    titles += ["set-up", "seeds", "timings", "sees"]
    largest = {2 + position for position, column in enumerate(columns) if column.direction == "higher"}
    spans = {
        column.name: span(
            interval
            for candidate in ranked
            if (interval := shown_interval(candidate.row.value(column.name), column.direction))
        )
        for column in columns
    }
    body = "\n".join(_line(order, candidate, columns, spans, cards) for order, candidate in enumerate(ranked))
    return markup.table(
        f"{ranked[0].anchor}-title",
        ranked[0].board.title,
        markup.head(titles, sorted_by=0, descending=largest),
        f"\n{body}\n",
    )


def _line(
    order: int, placed: PlacedRow, columns: Sequence[Metric], spans: dict[str, float], cards: Mapping[str, Card]
) -> str:
    row = placed.row
    unverified = markup.unverified(unverified_text(row))
    control = " (A/A)" if row.stack == row.reference else ""
    name = f"{markup.link(placed.technique, markup.code(row.stack))}{unverified}{control}"
    cells = [
        markup.cell(placed.tier, order),
        markup.row_head(row.stack, name),
        *(value_cell(column, row.value(column.name), spans[column.name]) for column in columns),
        markup.cell(setup_text(row), f"{row.setup.estimate:.6g}" if row.setup else ""),
        markup.cell(seeds_text(row), len(row.seeds)),
        markup.cell(timings_text(row), len(row.known.timed)),
        markup.cell(
            detectable_text(row),
            f"{row.detectable_effect:.6g}" if detectable_text(row) else "",
            title=f"the smallest change of the {HEADLINE.title} that it had 80 % power to see",
        ),
    ]
    dated = " data-unverified" if _dated(row) else ""
    return f'<tr id="{placed.identity}"{_named(placed, cards)}{dated}>{"".join(cells)}</tr>'
