"""Inline SVG: whiskers, the ruler, the Pareto plot, learning curves. Colours are those of the style sheet, by class.

Bounds and modelled values are never drawn as if they were measured: the plots of ratios leave them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.judge.known import Known
from suite.judge.rows import Row
from suite.judge.ruler import Ruler
from suite.judge.statistics import QUALITY_TOLERANCE, Floats, Interval
from suite.record.schema import Learned
from suite.record.text import in_html
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
        known = [value.number for value in values if value and value.kind in ("measured", "exact") and value.number > 0]
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
        drawn = f'<g class="{kind}"><title>{in_html(says)}</title>{ring}{shape}{name}</g>'
        target = (links or {}).get(each.name) if each is not REFERENCE else None
        parts.append(f'<a href="#{target}" aria-label="{in_html(says)}">{drawn}</a>' if target else drawn)
    label = f"Training time against peak tensor memory of {len(plotted) - 1} techniques; the table has the numbers."
    return _figure(width, height, label, parts, "pareto")


def _label(x: float, y: float, name: str, width: float, taken: list[tuple[float, float, float]]) -> str:
    """The name right or left of its point, or above or below; nothing where there is no room. Adds to ``taken``."""
    short, length = _shortened(name)
    for dy in (0, 12, -12, 24, -24):
        for left in (x, x - length - 22):
            if left >= 0 and left + length <= width and _free(left, length, y + dy, taken):
                taken.append((left, left + length, y + dy))
                return _tick(left, y + dy, short, "start")
    return ""


def _shortened(name: str) -> tuple[str, float]:
    """The name as it is drawn, and roughly how long it is in 12 px type."""
    short = name if len(name) <= 28 else name[:27] + "…"
    return short, 7.2 * len(short)


def _free(left: float, length: float, y: float, taken: Iterable[tuple[float, float, float]]) -> bool:
    return all(abs(y - other) >= 12 or left + length < low or high < left for low, high, other in taken)


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


# the ruler -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 64, 70, 24, 46
SEEN = 0.08  # of ln loss: how far beyond the curve's ends a loss is drawn where it is; beyond that at the edge
BAND = 2.0  # standard errors
MOST_NAMES = 60  # a pointer finds the others


@dataclass(frozen=True)
class RulerPoint:
    """Where a technique stands on the reference's scaling curve: its equivalent budget over the reference's own, with
    the ends of its interval, and its final loss. ``beyond``: -1 or 1 where that is off the curve's lower or upper end.
    """

    stack: str
    budget: float
    low: float
    high: float
    loss: float
    beyond: int

    @property
    def says(self) -> str:
        sign = {-1: "less than ", 1: "more than "}.get(self.beyond, "")
        worth = f"worth {sign}{number(self.budget)} of the reference's budget"
        return f"{self.stack}: {worth}, final loss {number(self.loss, 3)}"


def ruler_points(rows: Sequence[Row]) -> list[RulerPoint]:
    """The points of the rows whose equivalent budget is measured or a bound."""
    known = []
    for row in rows:
        value = row.value("equivalent_budget")
        if value.kind not in ("measured", "bound") or not row.known.learned:
            continue
        beyond = 0 if value.kind == "measured" else 1 if value.at_most else -1
        interval = value.speedup
        low, high = (interval.low, interval.high) if interval and bounded(interval) else (1 / value.number,) * 2
        known.append(RulerPoint(row.stack, 1 / value.number, low, high, mean_loss(row.known), beyond))
    return known


def mean_loss(known: Known) -> float:
    """The geometric mean over seeds of the contenders' final losses."""
    return float(np.exp(np.mean(np.log(known.losses()[1]))))


def ruler(rows: Sequence[Row], links: Mapping[str, str] | None = None) -> str:
    """The reference's final loss against its budget, log-log: seeds as dots, the monotone fit with its band, and every
    technique where it ended; beyond the curve's ends at the margin, with an arrow. Empty where nothing was learned.

    ``links``: stack -> the identity on the page that its point leads to.
    """
    curve = next((row.known.ruler for row in rows if row.known.ruler), None)
    if curve is None:
        return ""
    marks = ruler_points(rows)
    fitted, error = curve.log_losses, BAND * curve.log_errors
    seeds = np.log(curve.losses[np.isfinite(curve.losses)])
    ends_x = curve.log_budgets[0], curve.log_budgets[-1]
    lows, highs = [*seeds, *(fitted - error)], [*seeds, *(fitted + error)]
    nearby = [math.log(each.loss) for each in marks]
    y0 = min([*lows, *(max(each, min(lows) - SEEN) for each in nearby)])
    y1 = max([*highs, *(min(each, max(highs) + SEEN) for each in nearby)])
    y0, y1 = y0 - 0.06 * (y1 - y0), y1 + 0.06 * (y1 - y0)
    padding = 0.1 * (ends_x[1] - ends_x[0])
    x0, x1 = ends_x[0] - padding, ends_x[1] + padding

    def x(log_budget: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(log_budget, x0), x1) - x0) / (x1 - x0)

    def y(log_loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (y1 - min(max(log_loss, y0), y1)) / (y1 - y0)

    fine = np.linspace(*ends_x, DOTS)
    line = "L".join(f"{x(each):.1f} {y(curve.log_loss(each)):.1f}" for each in fine)
    around = [(each, curve.log_loss(each), float(np.interp(each, curve.log_budgets, error))) for each in fine]
    upper = [f"{x(each):.1f} {y(loss + half):.1f}" for each, loss, half in around]
    lower = [f"{x(each):.1f} {y(loss - half):.1f}" for each, loss, half in reversed(around)]
    parts = [
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
        f'<path class="one" d="M{x(0):.1f} {TOP}V{HEIGHT - BOTTOM}"/>',
        *(_tick(x(math.log(share)), HEIGHT - BOTTOM + 18, f"{share:g}×", "middle") for share in curve.shares),
        *(_tick(LEFT - 8, y(tick) + 4, words, "end") for tick, words in loss_ticks(y0, y1)),
        _tick((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "the reference's budget over its own (1×)", "middle"),
        f'<text class="tick" text-anchor="middle" transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) '
        'rotate(-90)">final test loss</text>',
        f'<path class="band" d="M{"L".join([*upper, *lower])}Z"/>' if error.any() else "",
        f'<path class="fit" d="M{line}"/>',
        *_seed_dots(curve, x, y),
    ]
    taken = [(x(each), x(each), y(curve.log_loss(each)) + 4) for each in fine]  # names keep off the curve
    spots = [(each, *_spot(each, x, y)) for each in sorted(marks, key=lambda each: each.loss)]
    taken += [(px - 9, px + 9, py + 4) for _, px, py in spots]
    for number_drawn, (each, px, py) in enumerate(spots):
        room = number_drawn < MOST_NAMES
        name = (_label(px + 11, py + 4, each.stack, WIDTH, taken) or _led(px, py, each.stack, taken)) if room else ""
        drawn = f'<g class="{"off" if each.beyond < 0 else "on"}"><title>{in_html(each.says)}</title>'
        drawn += f"{_ruler_mark(each, px, py, x)}{name}</g>"
        target = (links or {}).get(each.stack)
        parts.append(f'<a href="#{target}" aria-label="{in_html(each.says)}">{drawn}</a>' if target else drawn)
    label = f"The reference's final loss against its budget, with {len(marks)} techniques; the table has the numbers."
    return _figure(WIDTH, HEIGHT, label, parts, "ruler")


Scale = Callable[[float], float]
STEPS_AWAY = 14


def _led(px: float, py: float, name: str, taken: list[tuple[float, float, float]]) -> str:
    """The name further from its point, where the falling curve leaves room, with a line to it; nothing where there is
    none. Adds to ``taken``."""
    short, length = _shortened(name)
    for away in range(2, STEPS_AWAY):
        for side in (1, -1):
            left = px + 9 * away if side > 0 else px - 9 * away - length
            at = py + 4 - 15 * side * away
            if (
                left > LEFT
                and left + length < WIDTH
                and TOP < at < HEIGHT - BOTTOM - 6
                and _free(left, length, at, taken)
            ):
                taken.append((left, left + length, at))
                end = left - 3 if side > 0 else left + length + 3
                line = f'<path class="lead" d="M{px:.1f} {py:.1f}L{end:.1f} {at - 4:.1f}"/>'
                return line + _tick(left, at, short, "start")
    return ""


def _spot(point: RulerPoint, x: Scale, y: Scale) -> tuple[float, float]:
    """Where a point is drawn: one beyond the ends in the margin."""
    px = x(point.beyond * math.inf) if point.beyond else x(math.log(point.budget))
    return px, min(max(y(math.log(point.loss)), TOP + 6), HEIGHT - BOTTOM - 12)  # clear of the axis and its numbers


def _ruler_mark(point: RulerPoint, px: float, py: float, x: Scale) -> str:
    if point.beyond:
        return f'<path class="arrow" d="M{px:.1f} {py - 6:.1f}l{10 * point.beyond} 6l{-10 * point.beyond} 6z"/>'
    span = f'<path class="span" d="M{x(math.log(point.low)):.1f} {py:.1f}H{x(math.log(point.high)):.1f}"/>'
    return f'{span}<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>'


def _seed_dots(curve: Ruler, x: Scale, y: Scale) -> Iterable[str]:
    for losses in curve.losses:
        for budget, loss in zip(curve.log_budgets, losses, strict=True):
            if math.isfinite(loss):
                yield f'<circle class="seed" cx="{x(budget):.1f}" cy="{y(math.log(loss)):.1f}" r="2"/>'


def loss_ticks(y0: float, y1: float) -> list[tuple[float, str]]:
    """Five round losses between the logs of two, with their words."""
    low, high = math.exp(y0), math.exp(y1)
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    digits = max(0, -math.floor(math.log10(step)))
    return [
        (math.log(tick * step), f"{tick * step:.{digits}f}")
        for tick in range(math.ceil(low / step), math.floor(high / step) + 1)
        if tick > 0
    ]


# curves --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Validation losses [points, (reference steps, loss)] of one side: seed by seed, and their mean."""

    kind: str
    seeds: tuple[Floats, ...]
    mean: Floats


def learning_curves(row: Row) -> list[Curves]:
    """Of the reference and of the technique, over progress in reference steps; nothing where nothing was learned."""
    steps = row.conditions.steps
    both = []
    for index, kind in enumerate(("reference", "technique")):
        seeds = [_curve(pair.sides[index], steps) for pair in row.known.learned]
        seeds = [each for each in seeds if len(each) > 1]
        if not seeds:
            return []
        grid = np.unique(np.concatenate([each[:, 0] for each in seeds]))
        inside = grid[(grid >= max(each[0, 0] for each in seeds)) & (grid <= min(each[-1, 0] for each in seeds))]
        mean = np.mean([np.interp(inside, each[:, 0], each[:, 1]) for each in seeds], axis=0)
        both.append(Curves(kind, tuple(seeds), np.column_stack([inside, mean])))
    return both


def _curve(learned: Learned, reference_steps: int) -> Floats:
    """Validation loss over reference steps, where it is a number."""
    if not learned.steps:
        return np.zeros((0, 2))
    points = [(each.step / learned.steps * reference_steps, each.loss) for each in learned.curve]
    line = np.array(points, dtype=np.float64).reshape(-1, 2)
    return line[np.isfinite(line).all(axis=1)]


def curves(row: Row) -> str:
    """Validation loss against progress in reference steps: the mean over seeds, and every seed as a thin line."""
    both = learning_curves(row)
    if not both:
        return ""
    together = np.concatenate([line for side in both for line in (*side.seeds, side.mean)])
    x1 = max(float(together[:, 0].max()), 1e-9)
    y0, y1 = float(together[:, 1].min()), float(together[:, 1].max())
    width, height, left, bottom = 300, 190, 44, 30

    def path(line: Floats) -> str:
        places = [
            f"{left + (width - left - 8) * max(0.0, x) / x1:.1f} "
            f"{8 + (height - bottom - 8) * (y1 - y) / ((y1 - y0) or 1):.1f}"
            for x, y in _thinned(line)
        ]
        return "M" + "L".join(places)

    parts = [
        f'<path class="axis" d="M{left} 8V{height - bottom}H{width - 8}"/>',
        _tick(left - 5, 14, number(y1), "end"),
        _tick(left - 5, height - bottom, number(y0), "end"),
        _tick(left, height - bottom + 15, "0", "middle"),
        _tick(width - 8, height - bottom + 15, number(x1), "end"),
        _tick((left + width) / 2, height - 3, "progress in reference steps", "middle"),
        *(f'<path class="{side.kind} seed" d="{path(line)}"/>' for side in both for line in side.seeds),
        *(f'<path class="{side.kind}" d="{path(side.mean)}"/>' for side in both),
    ]
    label = f"Validation loss of {row.stack} and of its reference against progress."
    return _figure(width, height, label, parts, "curves")


def _thinned(line: Floats) -> Floats:
    """At most DOTS of its points, the first and the last among them."""
    return line[np.linspace(0, len(line) - 1, DOTS).astype(int)] if len(line) > DOTS else line


def _figure(width: int, height: int, label: str, parts: Sequence[str], kind: str) -> str:
    role = "group" if kind in ("pareto", "ruler") else "img"  # an image's links could not be reached by a screen reader
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="{role}" aria-label="{in_html(label)}">'
    return f"{head}{''.join(parts)}</svg>"


def _tick(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{in_html(words)}</text>'
