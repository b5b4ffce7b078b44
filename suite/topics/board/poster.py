"""Draws the matrix of all techniques as one picture, for a README or a slide: an SVG that follows the reader's light or
dark.

As the page opens: one recipe and size, in its groups. First what each technique takes at the papers' own sizes, where
that is known, then the intervals of every cell on one axis from ½ to 2, colour only where an interval excludes 1 and
the reference has as much hardware. No technique is left out, and no word cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from textwrap import wrap

from suite.judge.rows import Row
from suite.record.text import in_html
from suite.show.pages import matrix
from suite.show.pages.board import (
    HEADLINE,
    bounded,
    decimals,
    mark,
    number,
    shown_interval,
    shown_number,
)
from suite.show.pictures.drawing import colours_css
from suite.topics.at_scale import answer
from suite.topics.at_scale.answer import SizedCell
from suite.topics.board.report import Report

TITLE = "Time to the same quality, as a speedup, with 95 % intervals"
LINE, TOP, NAME, CELL, AXIS, COST, SIZED, LEAST_WIDTH = 21, 74, 175, 138, 66, 108, 124, 640  # pixels
MONO, LETTER = 7.8, 7.4  # pixels of a letter of a wide font of 12 and of 13 pixels
COLOURS = {1: "better", -1: "worse", 0: "same"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--text); font-variant-numeric: tabular-nums; }
.name { font-family: ui-monospace, monospace; font-size: 12px; }
.title { font-size: 17px; font-weight: 600; }
.group { font-weight: 600; fill: var(--faint); }
.faint { fill: var(--faint); }
.words { font-size: 12px; fill: var(--faint); }
.page { fill: var(--page); }
.line { stroke: var(--line); }
.same { fill: var(--faint); stroke: var(--faint); }
.better { fill: var(--better); stroke: var(--better); }
.worse { fill: var(--worse); stroke: var(--worse); }
text.better, text.worse { stroke: none; font-weight: 600; }
text.same { fill: var(--text); stroke: none; }
.modelled { font-style: italic; fill: var(--faint); }
"""


def render(report: Report) -> str:
    """Draws the matrix that the page shows first. Raises ValueError where nothing was measured."""
    whole = matrix.matrix(matrix.first(report.rows), {id: card.good for id, card in report.cards.items()})
    if not whole.entries:
        raise ValueError("there is nothing to draw yet; measure some with: leantrain run")
    sized = _sized(whole, report)
    costs = [] if sized else [cost for cost in matrix.COSTS if any(entry.cost(cost.name) for entry in whole.entries)]
    names = max(NAME, 24 + max(_name_width(entry) for entry in whole.entries))
    sizes = [cell.label for cell in next(iter(sized.values()), [])]
    ends = [names + SIZED * (at + 1) for at in range(len(sizes))]
    start = ends[-1] + 12 if ends else names
    left = {column: start + CELL * position for position, column in enumerate(whole.columns)}
    right = {metric.name: start + CELL * len(left) + COST * (at + 1) for at, metric in enumerate(costs)}
    width = max(LEAST_WIDTH, start + CELL * len(left) + COST * len(costs) + 12)
    older = matrix.older_in_words(whole.entries)
    said = _wrapped(f"{whole.shared}: {whole.tally}.", width)
    said += _wrapped(f"Axes from ½ to 2, the line is 1{f'; {older}' if older else ''}.", width)
    top = TOP + LINE * (len(said) - 1 + bool(sizes))
    parts = [
        _text(12, 26, "What each technique takes of a larger model, and does here" if sizes else TITLE, "title"),
        *(_text(12, 45 + LINE * at, words, "faint") for at, words in enumerate(said)),
        *(_over(ends[0] - SIZED + 30, ends[-1], left[whole.columns[0]], top) if sizes else ()),
        *(_text(x, top - 10, f"{_short(label)} ↓", "faint", "end") for label, x in zip(sizes, ends, strict=True)),
        *(_text(x + CELL - 12, top - 10, whole.title(column), "faint", "end") for column, x in left.items()),
        *(_text(right[metric.name], top - 10, f"{metric.heading} {metric.arrow}", "faint", "end") for metric in costs),
    ]
    y = top
    for title, entries in whole.groups:
        parts += [_rule(y, width), _text(12, y + 15, title, "group")]
        for entry in entries:
            y += LINE
            parts += [_rule(y, width), *_entry(entry, y, left, right)]
            parts += [_size(cell, x, y) for cell, x in zip(sized.get(entry.stack, ()), ends, strict=False)]
        y += LINE
    height = y + 6
    says = in_html(f"{len(whole.entries)} techniques: {whole.tally}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img" '
        f'aria-label="{says}"><style>{colours_css("svg")}{STYLE}</style>'
        f'<rect class="page" width="{width:g}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def _sized(whole: matrix.Matrix, report: Report) -> dict[str, list[SizedCell]]:
    """Returns what each stack takes at the papers' own sizes, without the budget, which the intervals show; empty where
    nothing was counted or modelled there."""
    known = answer.at_paper_sizes(report.paper_scale, report.gpu_times)
    cells = {
        entry.stack: answer.cells(known.get(entry.stack, answer.NOTHING), (), (), known)[:-1] for entry in whole.entries
    }
    return cells if any(cells.values()) else {}


def _over(first: float, last: float, here: float, top: float) -> Iterator[str]:
    """Writes what the two kinds of columns are, above their heads."""
    yield _text(last, top - 10 - LINE, "at the papers' own sizes", "group", "end")
    yield _text(here + 8, top - 10 - LINE, f"here: {TITLE[:1].lower()}{TITLE[1:]}", "group")


def _short(label: str) -> str:
    return label.removesuffix(" at paper's size")


def _size(cell: SizedCell, x: float, y: float) -> str:
    kind = "better" if cell.kind == "better" else "modelled" if "modelled" in cell.kind else "faint"
    return _text(x, y + 15, cell.words, kind, "end")


def _name_width(entry: matrix.MatrixEntry) -> float:
    return MONO * len(entry.stack) + (16 + LETTER * len(entry.hardware) if entry.hardware else 0)


def _entry(entry: matrix.MatrixEntry, y: float, left: Mapping[str, float], right: Mapping[str, float]) -> Iterator[str]:
    """Draws a technique's line; what it runs on stands beside its name where that is more than its reference has."""
    yield _text(12, y + 15, entry.stack, "name")
    if entry.hardware:
        yield _text(28 + MONO * len(entry.stack), y + 15, entry.hardware, "words")
    for column, row in entry.best.items():
        yield _cell(row, left[column], y, matrix.OLDER if column in entry.versions else "")
    for name, x in right.items():
        yield _text(x, y + 15, entry.cost(name), "faint", "end")


def _rule(y: float, width: float) -> str:
    return f'<path class="line" d="M0 {y:g}H{width:g}"/>'


def _wrapped(words: str, width: float) -> list[str]:
    """Breaks the words into lines of the picture's width."""
    return wrap(words, int((width - 24) / LETTER))


def _cell(row: Row, x: float, y: float, sign: str) -> str:
    value = row.value(HEADLINE.name)
    if value.kind not in ("measured", "bound"):
        return _text(x + CELL - 12, y + 15, f"{matrix.word_without_number(row)}{sign}", "faint", "end")
    interval, kind = shown_interval(value, HEADLINE.direction), COLOURS[matrix.surely(row)]
    shown = shown_number(value, HEADLINE.direction)
    figure = f"{mark(value, HEADLINE.direction)}{number(shown, decimals(interval))}{sign}"
    parts = [_text(x + CELL - 12, y + 15, figure, kind, "end"), _mark_of_one(x, y)]
    if value.kind == "measured" and shown > 0:
        parts.append(f'<circle class="{kind}" cx="{_along(x, shown):.1f}" cy="{y + 10.5}" r="3"/>')
    if interval and bounded(interval):
        low, high = _along(x, interval.low), _along(x, interval.high)
        parts.append(f'<path class="{kind}" stroke-width="2" d="M{low:.1f} {y + 10.5}H{high:.1f}"/>')
    return "".join(parts)


def _mark_of_one(x: float, y: float) -> str:
    return f'<path class="line" d="M{_along(x, 1.0):.1f} {y + 3}v15"/>'


def _along(x: float, ratio: float) -> float:
    """Returns the place of a ratio on a cell's axis; what lies beyond stands at its end."""
    place = math.log2(ratio) if ratio > 0 else -1.0
    return x + 8 + AXIS * (max(-1.0, min(1.0, place)) + 1) / 2


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{at}>{in_html(words)}</text>'
