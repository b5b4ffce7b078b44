"""Writes the leaderboard as one HTML file that opens offline: style and script inside, nothing loaded, everything
escaped.

What is folded is packed (:mod:`suite.show.packing`), and the script unpacks it where it is opened; without the script
the findings, the pictures, the tables and every title are there. A content-security policy admits this one script by
its hash and no network at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from suite.entries.card import Card
from suite.judge.metrics import Metric
from suite.judge.rows import Row, as_dict
from suite.show.described import Section
from suite.show.packing import Pack, packed
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
from suite.show.pages.markup import fragments
from suite.show.pages.places import PlacedRow, categories, kinds
from suite.show.pages.rendered import as_html
from suite.show.pictures.charts import by_curve, forest, pareto, ruler, span
from suite.show.pictures.drawing import charts_css, colours_css
from suite.topics.board.board_findings import findings
from suite.topics.board.contents import sections
from suite.topics.board.drawn import macros, template
from suite.topics.board.front import front, words
from suite.topics.board.goals import tables
from suite.topics.board.report import Report
from suite.topics.board.sections import techniques
from suite.topics.board.standing import Standing, place_of

DRAWN = macros("board")


def render(report: Report) -> str:
    """Writes the whole page."""
    rows, cards = report.rows, report.cards
    folder = files(__package__)
    script = (folder / "board.js").read_text("utf-8")
    summary = summarised(rows)
    placed = report.placed
    on_boards = [spot for spot in placed if not spot.row.newer_version] or placed
    of_topics = sections(report)
    standing = Standing.of(report)
    of_goals = tables(standing)
    pack = Pack()
    boards = list({id(spot.board): spot.board for spot in on_boards}.values())
    of_boards = [pack.fold(_board([spot for spot in on_boards if spot.board is board], report)) for board in boards]
    parts = [
        techniques(report, placed, of_goals, {spot.identity for spot in on_boards}, pack) if placed else "",
        *(as_html(section) if section.is_open else pack.fold(as_html(section)) for section in of_topics),
    ]
    targets = {"methods", *(section.anchor for section in of_topics), *(["techniques", "boards"] if placed else [])}
    anchors = {spot.row.stack: spot.technique for spot in placed}
    chosen = _chosen(standing)
    selects = _choices([spot.row for spot in on_boards], cards)
    return template("page").render(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=colours_css() + (folder / "board.css").read_text("utf-8") + charts_css(),
        script=script,
        summary=summary.sentence if rows else "No records yet. Measure some: leantrain run",
        front=front(findings(of_goals, standing), of_goals, anchors, targets, standing.sentence),
        reading=_reading(report),
        terms=words(),
        contents=_contents(on_boards, of_topics),
        selects=[
            DRAWN.select(name, values, chosen.get(name, "")) for name, values in selects.items() if len(values) > 1
        ],
        boards=of_boards,
        sections=Markup("\n").join(filter(None, parts)),
        entries=_entries(on_boards, cards),
        parts=pack.packed,
        data=packed([_thinned(as_dict(row)) for row in rows]),
    )


def _reading(report: Report) -> list[str]:
    """Lists the sentences on how the boards are read, and on what is left out."""
    summary = summarised(report.rows)
    sentences = [*HOW_TO_READ, *(f"Machine {name}: {facts}." for name, facts in summary.machines)]
    if summary.unverified:
        sentences.append(unverified_sentence(summary.unverified))
    if older := older_sentence(report.rows):
        sentences.append(older)
    if report.problems:
        sentences.append(f"Lines of the records that could not be read and are left out: {len(report.problems)}.")
    return sentences


def _contents(placed: Sequence[PlacedRow], of_topics: Sequence[Section]) -> Markup:
    """Writes links to the sections; a board's link carries the board's conditions, to be filtered with it."""
    first_of_boards = {spot.anchor: spot for spot in placed}
    of_boards = [(_filters(spot.row), anchor, spot.board.title) for anchor, spot in first_of_boards.items()]
    return DRAWN.contents(bool(placed), of_boards, [(section.anchor, section.title) for section in of_topics])


def _filters(row: Row) -> dict[str, str]:
    """Returns the values that a board is filtered by; a row is filtered by its category, too."""
    at = row.conditions
    return {"baseline": at.baseline, "recipe": at.recipe, "size": at.size, "machine": row.machine.name}


def _choices(rows: Sequence[Row], cards: Mapping[str, Card]) -> dict[str, list[str]]:
    """Returns the values that a filter offers."""
    names = ("baseline", "recipe", "size", "machine")
    return {name: sorted({_filters(row)[name] for row in rows}) for name in names} | {
        "category": sorted({category for row in rows for category in categories(row.stack, cards)})
    }


def _chosen(standing: Standing) -> dict[str, str]:
    """Returns the values that the boards show first: those of what stands on the tables; empty for all."""
    if not standing.rows:
        return {}
    recipe, size, *_ = place_of(standing.rows[0])
    return {"recipe": recipe, "size": size, "machine": standing.rows[0].machine.name}


def _entries(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> Markup:
    """Writes the script's table: by a board's anchor what its rows are filtered by, for the script, which counts those
    that are packed, too."""
    entries: dict[str, list[dict[str, str]]] = {}
    for spot in placed:
        entry = {"name": spot.row.stack, "category": kinds(spot.row.stack, cards)}
        dated = {"unverified": ""} if _dated(spot.row) and not spot.row.failed else {}
        entries.setdefault(spot.anchor, []).append(entry | dated)
    return Markup(json.dumps(entries, separators=(",", ":")).replace("<", "\\u003c"))


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


def _board(placed: Sequence[PlacedRow], report: Report) -> Markup:
    """Writes one board's section, from its rows' places: its title and conditions, the rest folded."""
    board, cards = placed[0].board, report.cards
    ranked = [spot for spot in placed if not spot.row.failed]
    columns = board.columns()
    return DRAWN.board(
        placed[0].anchor,
        _filters(board.rows[0]),
        board.title,
        f"{board.subtitle} {board.detectable}",
        _table(ranked, columns, cards) if ranked else "",
        board.empty_columns(),
        [(spot.row.stack, sentences) for spot in ranked if (sentences := remarks(spot.row, columns))],
        [
            DRAWN.failed(
                spot.identity,
                _named(spot, cards),
                spot.technique,
                spot.row.stack,
                "; ".join(failure_lines(spot.row)),
            )
            for spot in placed
            if spot.row.failed
        ],
        _figures(ranked, report.qualities.get(board.rows[0].conditions.baseline, "")),
    )


def _figures(ranked: Sequence[PlacedRow], quality: str) -> list[Markup]:
    """Draws a board's plots; ``quality``: what its baseline's loss is."""
    rows, links = [spot.row for spot in ranked], {spot.row.stack: spot.technique for spot in ranked}
    drawn = (
        ("Time to the same quality, sorted by effect", forest(rows, links), DRAWN.forest_legend()),
        ("Time and memory", pareto(rows, links), DRAWN.pareto_legend()),
        *(
            (DRAWN.ruler_title(apart), ruler(read_off, links, quality), DRAWN.ruler_legend())
            for apart, read_off in by_curve(rows)
        ),
    )
    # on a phone each scrolls
    return [DRAWN.figure(title, drawing.svg(), legend) for title, drawing, legend in drawn if drawing]


def _named(placed: PlacedRow, cards: Mapping[str, Card]) -> dict[str, str]:
    """Returns the values by which the script filters what belongs to one stack."""
    return {"name": placed.row.stack, "category": kinds(placed.row.stack, cards)}


def _table(ranked: Sequence[PlacedRow], columns: Sequence[Metric], cards: Mapping[str, Card]) -> Markup:
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
    return fragments.table(
        f"{ranked[0].anchor}-title",
        ranked[0].board.title,
        fragments.head(titles, sorted_by=0, descending=largest),
        [_line(order, candidate, columns, spans, cards) for order, candidate in enumerate(ranked)],
    )


def _line(
    order: int, placed: PlacedRow, columns: Sequence[Metric], spans: dict[str, float], cards: Mapping[str, Card]
) -> Markup:
    row = placed.row
    unverified = fragments.unverified(unverified_text(row))
    cells = [
        fragments.cell(placed.tier, order),
        fragments.row_head(row.stack, DRAWN.name(placed.technique, row.stack, unverified, row.stack == row.reference)),
        *(value_cell(column, row.value(column.name), spans[column.name]) for column in columns),
        fragments.cell(setup_text(row), f"{row.setup.estimate:.6g}" if row.setup else ""),
        fragments.cell(seeds_text(row), len(row.seeds)),
        fragments.cell(timings_text(row), len(row.known.timed)),
        fragments.cell(
            detectable_text(row),
            f"{row.detectable_effect:.6g}" if detectable_text(row) else "",
            title=f"the smallest change of the {HEADLINE.title} that it had 80 % power to see",
        ),
    ]
    return DRAWN.line(placed.identity, _named(placed, cards), _dated(row), cells)
