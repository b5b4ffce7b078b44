"""Small inline SVG: whiskers, the Pareto plot, loss curves. Colours come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from suite.judge.rows import Row
from suite.judge.statistics import QUALITY_TOLERANCE, Floats, Interval
from suite.show.board import bounded, number

WIDEST = math.log(8)  # a whisker that runs beyond 8 or 1/8 is cut at the edge
NARROWEST = math.log(1.05)
DOTS = 60  # of a curve: more than a small drawing can show


def span(intervals: Iterable[Interval]) -> float:
    """Half the width, in logs, of a whisker axis around 1 that holds these intervals."""
    finite = [abs(math.log(x)) for i in intervals for x in (i.low, i.high, i.estimate) if 0 < x < math.inf]
    return min(WIDEST, max([NARROWEST, *finite]))


def whisker(interval: Interval, half_width: float) -> str:
    """The interval of a ratio on a log axis around 1, 100 units wide; the line in the middle is 1."""

    def x(ratio: float) -> float:
        place = math.log(ratio) / half_width if ratio > 0 else -1.0
        return 50 + 47 * max(-1.0, min(1.0, place))

    line = ""
    if bounded(interval):
        line = f'<path d="M{x(interval.low):.1f} 6H{x(interval.high):.1f}"/>'
    return (
        '<svg class="whisker" viewBox="0 0 100 12" aria-hidden="true"><path class="one" d="M50 0V12"/>'
        f'{line}<circle cx="{x(interval.estimate):.1f}" cy="6" r="4"/></svg>'
    )


# Pareto --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostPoint:
    """A technique's three cost ratios."""

    name: str
    time: float
    memory: float
    loss: float

    @property
    def costs(self) -> tuple[float, float, float]:
        return self.time, self.memory, self.loss


REFERENCE = CostPoint("reference", 1.0, 1.0, 1.0)


def points(rows: Sequence[Row]) -> list[CostPoint]:
    """The points of those rows that have all three costs."""
    known_points = []
    for row in rows:
        values = [row.metrics.get(name) for name in ("training_time", "peak_tensor_bytes", "loss")]
        known = [value.number for value in values if value and value.known and value.number > 0]
        if len(known) == 3:
            known_points.append(CostPoint(row.stack, *known))
    return known_points


def front(among: Sequence[CostPoint]) -> list[CostPoint]:
    """Choose the points that no other point equals in time, memory and loss while beating it in one."""

    def beaten(a: CostPoint, b: CostPoint) -> bool:
        return a.costs != b.costs and all(x >= y for x, y in zip(a.costs, b.costs, strict=True))

    return [a for a in among if not any(beaten(a, b) for b in among)]


def pareto(rows: Sequence[Row], links: Mapping[str, str] | None = None) -> str:
    """Time against memory, quality as shape; ringed: the front, the reference among the candidates.

    ``links``: stack -> the identity on the page that its point leads to. Names that would lie on others are left out,
    those of the front last; a pointer finds them.
    """
    plotted = [REFERENCE, *points(rows)]
    if len(plotted) < 2:
        return ""
    best = set(front(plotted))
    width, height, left, bottom = 640, 400, 60, 46
    xs = _axis([each.time for each in plotted])
    ys = _axis([each.memory for each in plotted])

    def x(value: float) -> float:
        return left + (width - left - 20) * (math.log(value) - xs[0]) / (xs[1] - xs[0])

    def y(value: float) -> float:
        return height - bottom - (height - bottom - 16) * (math.log(value) - ys[0]) / (ys[1] - ys[0])

    parts = [
        f'<path class="one" d="M{x(1):.1f} 10V{height - bottom}M{left} {y(1):.1f}H{width - 10}"/>',
        *(_tick(x(tick), height - bottom + 18, number(tick), "middle") for tick in _ticks(xs)),
        *(_tick(left - 8, y(tick) + 4, number(tick), "end") for tick in _ticks(ys)),
        _tick((left + width) / 2, height - 8, "training time, ratio", "middle"),
        f'<text class="tick" text-anchor="middle" transform="translate(14 {height / 2 - 20:.0f}) rotate(-90)">'
        "peak tensor bytes, ratio</text>",
    ]
    taken = [(x(each.time) - 9, x(each.time) + 9, y(each.memory) + 4) for each in plotted]  # names keep off points
    for each in sorted(plotted, key=lambda point: point not in best):
        px, py = x(each.time), y(each.memory)
        worse = math.log(each.loss) > QUALITY_TOLERANCE
        kind = "reference" if each is REFERENCE else "worse" if worse else "kept"
        shape = (
            f'<path d="M{px:.1f} {py - 6:.1f}l6 10h-12z"/>' if worse else f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>'
        )
        ring = f'<circle class="ring" cx="{px:.1f}" cy="{py:.1f}" r="9"/>' if each in best else ""
        says = f"{each.name}: time {number(each.time)}, memory {number(each.memory)}, loss {number(each.loss, 3)}"
        name = _label(px + 11, py + 4, each.name, width, taken)
        drawn = f'<g class="{kind}"><title>{escape(says)}</title>{ring}{shape}{name}</g>'
        target = (links or {}).get(each.name) if each is not REFERENCE else None
        parts.append(f'<a href="#{target}" aria-label="{escape(says)}">{drawn}</a>' if target else drawn)
    label = f"Training time against peak tensor memory of {len(plotted) - 1} techniques; the table has the numbers."
    return _figure(width, height, label, parts, "pareto")


def _label(x: float, y: float, name: str, width: float, taken: list[tuple[float, float, float]]) -> str:
    """The name right or left of its point, or above or below; nothing where there is no room. Adds to ``taken``."""
    short = name if len(name) <= 28 else name[:27] + "…"
    length = 7.0 * len(short)  # of 12 px type, roughly
    for dy in (0, 12, -12, 24, -24):
        for left in (x, x - length - 22):
            right, inside = left + length, left >= 0 and left + length <= width
            if inside and all(abs(y + dy - other) >= 12 or right < low or high < left for low, high, other in taken):
                taken.append((left, right, y + dy))
                return _tick(left, y + dy, short, "start")
    return ""


def _axis(ratios: Sequence[float]) -> tuple[float, float]:
    """Log ends with a margin, 1 included."""
    logs = [0.0, *map(math.log, ratios)]
    margin = max(0.05, 0.08 * (max(logs) - min(logs)))
    return min(logs) - margin, max(logs) + margin


def _ticks(axis: tuple[float, float]) -> list[float]:
    wide = [2.0**power for power in range(-6, 7)]
    fine = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8]
    chosen = wide if axis[1] - axis[0] > math.log(4) else fine
    return [tick for tick in chosen if axis[0] <= math.log(tick) <= axis[1]]


# curves --------------------------------------------------------------------------------------------------------------


def curves(row: Row) -> str:
    """Test loss against cost in reference steps, every seed a line; set-up shifts a curve to the right."""
    lines: list[tuple[str, Floats]] = []
    for each in row.replicates:
        if len(each.reference_curve) > 1 and len(each.contender_curve) > 1:
            lines.append(("reference", each.reference_curve))
            shifted = np.column_stack([each.costs + each.setup_cost, each.contender_curve[:, 1]])
            lines.append(("technique", shifted))
    lines = [(kind, _thinned(line[np.isfinite(line).all(axis=1)])) for kind, line in lines]
    lines = [(kind, line) for kind, line in lines if len(line)]
    if not lines:
        return ""
    together = np.concatenate([line for _, line in lines])
    x1 = max(float(together[:, 0].max()), 1e-9)
    y0, y1 = float(together[:, 1].min()), float(together[:, 1].max())
    width, height, left, bottom = 300, 190, 44, 30

    def path(line: Floats) -> str:
        places = [
            f"{left + (width - left - 8) * max(0.0, x) / x1:.1f} "
            f"{8 + (height - bottom - 8) * (y1 - y) / ((y1 - y0) or 1):.1f}"
            for x, y in line
        ]
        return "M" + "L".join(places)

    parts = [
        f'<path class="axis" d="M{left} 8V{height - bottom}H{width - 8}"/>',
        _tick(left - 5, 14, number(y1), "end"),
        _tick(left - 5, height - bottom, number(y0), "end"),
        _tick(left, height - bottom + 15, "0", "middle"),
        _tick(width - 8, height - bottom + 15, number(x1), "end"),
        _tick((left + width) / 2, height - 3, "cost in reference steps", "middle"),
        *(f'<path class="{kind}" d="{path(line)}"/>' for kind, line in lines),
    ]
    return _figure(width, height, f"Test loss of {row.stack} and of its reference against cost.", parts, "curves")


def _thinned(line: Floats) -> Floats:
    """At most DOTS of its points, the first and the last among them."""
    return line[np.linspace(0, len(line) - 1, DOTS).astype(int)] if len(line) > DOTS else line


def _figure(width: int, height: int, label: str, parts: Sequence[str], kind: str) -> str:
    role = "group" if kind == "pareto" else "img"  # an image's links could not be reached by a screen reader
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="{role}" aria-label="{escape(label)}">'
    return f"{head}{''.join(parts)}</svg>"


def _tick(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
