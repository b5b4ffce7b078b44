"""The matrix of all techniques as one picture, for a README or a slide: an SVG that follows the reader's light or dark.

As the page opens: one recipe and size, intervals of every cell on one axis from ½ to 2, colour only where an interval
excludes 1.
"""

from __future__ import annotations

import math

from suite.judge.rows import Row
from suite.record.text import in_html
from suite.show import matrix
from suite.show.board import (
    HEADLINE,
    bounded,
    decimals,
    leaning,
    mark,
    number,
    shown_interval,
    shown_number,
)
from suite.show.drawing import colours_css
from suite.show.report import Report

LINE, TOP, NAME, CELL, AXIS, COST, WORDS = 21, 74, 175, 138, 76, 108, 290  # pixels
OLDER = "‡"  # behind a number of an older version; what it says stands above
MOST = 40  # techniques; the page has them all
COLOURS = {1: "better", -1: "worse", 0: "same"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--text); font-variant-numeric: tabular-nums; }
.name { font-family: ui-monospace, monospace; font-size: 12px; }
.title { font-size: 17px; font-weight: 600; }
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
    whole = matrix.matrix(matrix.first(report.rows))
    if not whole.entries:
        raise ValueError("there is nothing to draw yet; measure some with: leantrain run")
    costs = [metric for metric in matrix.COSTS if any(each.cost(metric.name) for each in whole.entries)]
    entries = whole.entries[:MOST]
    left = {column: NAME + CELL * position for position, column in enumerate(whole.columns)}
    right = {metric.name: NAME + CELL * len(left) + COST * (at + 1) for at, metric in enumerate(costs)}
    words_x = NAME + CELL * len(left) + COST * len(costs) + 16
    width, height = words_x + WORDS, TOP + LINE * len(entries) + 12
    tally = ", ".join(f"{whole.count(verdict)} {verdict}" for verdict in matrix.VERDICTS)
    older = sorted({version for entry in entries for version in entry.versions.values()})
    note = f"; {OLDER} {' or '.join(older)} of the baseline, not the newest" if older else ""
    parts = [
        f'<rect class="page" width="{width}" height="{height}"/>',
        _text(12, 26, "Time to the same quality, as a speedup, with 95 % intervals", "title"),
        _text(12, 45, f"{whole.shared}: {tally}; axes from ½ to 2, the line is 1{note}", "faint"),
        *(_text(x + CELL - 12, TOP - 10, whole.title(column), "faint", "end") for column, x in left.items()),
        *(_text(right[metric.name], TOP - 10, f"{metric.heading} {metric.arrow}", "faint", "end") for metric in costs),
    ]
    for place, entry in enumerate(entries):
        y = TOP + LINE * place
        parts.append(f'<path class="line" d="M0 {y}H{width}"/>')
        parts.append(_text(12, y + 15, entry.stack, "name"))
        parts += [
            _cell(row, left[column], y, OLDER if column in entry.versions else "") for column, row in entry.best.items()
        ]
        parts += [_text(x, y + 15, entry.cost(name), "faint", "end") for name, x in right.items()]
        parts.append(_text(words_x, y + 15, _short(f"{entry.answer}."), "words"))
    says = in_html(f"{len(whole.entries)} techniques: {tally}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{says}"><style>{colours_css("svg")}{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _cell(row: Row, x: float, y: float, sign: str) -> str:
    value = row.value(HEADLINE.name)
    if value.kind not in ("measured", "bound"):
        words = value.kind if value.kind == "missed" else "failed" if row.failed else "n/a"
        return _text(x + CELL - 12, y + 15, f"{words}{sign}", "faint", "end")
    interval, kind = shown_interval(value, HEADLINE.direction), COLOURS[leaning(value)]
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


def _short(sentence: str) -> str:
    longest = WORDS // 7  # pixels of a character in a wide font
    return sentence if len(sentence) <= longest else f"{sentence[: longest - 1]}…"


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{at}>{in_html(words)}</text>'
