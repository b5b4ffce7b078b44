"""The matrix of all techniques as one picture, for a README or a slide: an SVG that follows the reader's light or dark.

As the page opens: one recipe and size, in its groups, intervals of every cell on one axis from ½ to 2, colour only
where an interval excludes 1 and the reference has as much hardware. No word is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from suite.show.pages.report import Report
from suite.show.pictures.drawing import colours_css

LINE, TOP, NAME, CELL, AXIS, COST, LEAST_WIDTH = 21, 74, 175, 138, 66, 108, 640  # pixels
MONO, LETTER = 7.8, 7.4  # pixels of a letter of a wide font of 12 and of 13 pixels
OLDER = "‡"  # behind a number of an older version; what it says stands above
MOST = 40  # techniques; a sentence says what is left out, and the page has them all
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
"""


def render(report: Report) -> str:
    """The picture of the matrix that the page shows first. Raises ValueError where nothing was measured."""
    whole = matrix.matrix(matrix.first(report.rows), {id: card.good for id, card in report.cards.items()})
    if not whole.entries:
        raise ValueError("there is nothing to draw yet; measure some with: leantrain run")
    costs = [metric for metric in matrix.COSTS if any(entry.cost(metric.name) for entry in whole.entries)]
    groups = _drawn_groups(whole)
    drawn = [entry for _, entries in groups for entry in entries]
    names = max(NAME, 24 + max(_name_width(entry) for entry in drawn))
    left = {column: names + CELL * position for position, column in enumerate(whole.columns)}
    right = {metric.name: names + CELL * len(left) + COST * (at + 1) for at, metric in enumerate(costs)}
    width = max(LEAST_WIDTH, names + CELL * len(left) + COST * len(costs) + 12)
    older = sorted({version for entry in drawn for version in entry.versions.values()})
    note = f"; {OLDER} {' or '.join(older)} of the baseline, not the newest" if older else ""
    said = _wrapped(f"{whole.shared}: {whole.tally}.", width)
    said += _wrapped(f"Axes from ½ to 2, the line is 1{note}.", width)
    top = TOP + LINE * (len(said) - 1)
    parts = [
        _text(12, 26, "Time to the same quality, as a speedup, with 95 % intervals", "title"),
        *(_text(12, 45 + LINE * at, words, "faint") for at, words in enumerate(said)),
        *(_text(x + CELL - 12, top - 10, whole.title(column), "faint", "end") for column, x in left.items()),
        *(_text(right[metric.name], top - 10, f"{metric.heading} {metric.arrow}", "faint", "end") for metric in costs),
    ]
    y = top
    for title, entries in groups:
        parts += [_rule(y, width), _text(12, y + 15, title, "group")]
        for entry in entries:
            y += LINE
            parts += [_rule(y, width), *_entry(entry, y, left, right)]
        y += LINE
    for at, words in enumerate(_wrapped(_left_out(whole, drawn), width)):
        parts += [] if at else [_rule(y, width)]
        parts.append(_text(12, y + 15, words, "faint"))
        y += LINE
    height = y + 6
    says = in_html(f"{len(whole.entries)} techniques: {whole.tally}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img" '
        f'aria-label="{says}"><style>{colours_css("svg")}{STYLE}</style>'
        f'<rect class="page" width="{width:g}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def _drawn_groups(whole: matrix.Matrix) -> list[tuple[str, list[matrix.MatrixEntry]]]:
    """The groups with as many techniques as there is room for, the first of all."""
    groups, room = [], MOST
    for title, entries in whole.groups:
        if room:
            groups.append((title, entries[:room]))
        room -= len(entries[:room])
    return groups


def _left_out(whole: matrix.Matrix, drawn: Sequence[matrix.MatrixEntry]) -> str:
    """What the picture does not show, in a sentence; empty where it shows all."""
    here = {entry.stack for entry in drawn}
    left = [(title, sum(entry.stack not in here for entry in entries)) for title, entries in whole.groups]
    parts = [f"{count} under “{title}”" for title, count in left if count]
    count = sum(count for _, count in left)
    return f"Left out here: {count} more techniques of the leaderboard, {', '.join(parts)}." if count else ""


def _name_width(entry: matrix.MatrixEntry) -> float:
    return MONO * len(entry.stack) + (16 + LETTER * len(entry.hardware) if entry.hardware else 0)


def _entry(entry: matrix.MatrixEntry, y: float, left: Mapping[str, float], right: Mapping[str, float]) -> Iterator[str]:
    """A technique's line; what it runs on stands beside its name where that is more than its reference has."""
    yield _text(12, y + 15, entry.stack, "name")
    if entry.hardware:
        yield _text(28 + MONO * len(entry.stack), y + 15, entry.hardware, "words")
    for column, row in entry.best.items():
        yield _cell(row, left[column], y, OLDER if column in entry.versions else "")
    for name, x in right.items():
        yield _text(x, y + 15, entry.cost(name), "faint", "end")


def _rule(y: float, width: float) -> str:
    return f'<path class="line" d="M0 {y:g}H{width:g}"/>'


def _wrapped(words: str, width: float) -> list[str]:
    """The words in lines of the picture's width."""
    return wrap(words, int((width - 24) / LETTER))


def _cell(row: Row, x: float, y: float, sign: str) -> str:
    value = row.value(HEADLINE.name)
    if value.kind not in ("measured", "bound"):
        words = value.kind if value.kind == "missed" else "failed" if row.failed else "n/a"
        return _text(x + CELL - 12, y + 15, f"{words}{sign}", "faint", "end")
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
    """The place of a ratio on a cell's axis; what lies beyond stands at its end."""
    place = math.log2(ratio) if ratio > 0 else -1.0
    return x + 8 + AXIS * (max(-1.0, min(1.0, place)) + 1) / 2


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{at}>{in_html(words)}</text>'
