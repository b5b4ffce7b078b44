"""Draws the plots: time against memory, the reference's scaling curve, learning curves, intervals sorted by effect.

Each is a :class:`~suite.show.pictures.drawing.Drawing`, so a page and a file show the same. Colour stands only where an
interval excludes 1. Bounds and modelled values are never drawn as if they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.judge.known import Known
from suite.judge.metrics import MetricValue
from suite.judge.rows import Row
from suite.judge.ruler import Ruler
from suite.judge.statistics import QUALITY_TOLERANCE, Floats, Interval
from suite.record.schema import Learned
from suite.show.pages.board import HEADLINE, bounded, decimals, ends, leaning, mark, number, quantity, shown_number
from suite.show.pages.labels import LETTER, Box, Labels, point_box, shortened
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, MarkGroup, Shared, Words

WIDEST = math.log(8)  # a whisker that runs beyond 8 or 1/8 is cut at the edge
NARROWEST = math.log(1.05)
MOST_NAMES = 60  # in a plot; a pointer finds the others
DOTS = 60  # of a curve: more than a small drawing can show
KINDS = {1: "better", -1: "worse", 0: "same"}
Links = Mapping[str, str]
"""Stack -> the anchor on the page that its point leads to."""


def span(intervals: Iterable[Interval]) -> float:
    """Returns half the width, in logs, of a whisker axis around 1 that holds these intervals."""
    finite = [abs(math.log(x)) for i in intervals for x in (i.low, i.high, i.estimate) if 0 < x < math.inf]
    return min(WIDEST, max([NARROWEST, *finite]))


def whisker(interval: Interval, half_width: float) -> str:
    """Draws the interval of a ratio on a log axis around 1, 100 units, some 40 pixels, wide; the line in the middle is
    1."""

    def x(ratio: float) -> int:
        place = math.log(ratio) / half_width if ratio > 0 else -1.0
        return round(50 + 47 * max(-1.0, min(1.0, place)))

    line = ""
    if bounded(interval):
        line = f'<path d="M{x(interval.low)} 6H{x(interval.high)}"/>'
    return (
        '<svg class="whisker" viewBox="0 0 100 12" aria-hidden="true"><path class="one" d="M50 0V12"/>'
        f'{line}<circle cx="{x(interval.estimate)}" cy="6" r="4"/></svg>'
    )


# time against memory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostPoint:
    """Holds a technique's three cost ratios. ``leaning``: whether its headline is surely better (1) or worse (-1)."""

    name: str
    time: float
    memory: float
    loss: float
    leaning: int = 0

    @property
    def costs(self) -> tuple[float, float, float]:
        return self.time, self.memory, self.loss

    @property
    def lossy(self) -> bool:
        return math.log(self.loss) > QUALITY_TOLERANCE

    @property
    def says(self) -> str:
        costs = f"time {number(self.time)}, memory {number(self.memory)}, loss {number(self.loss, 3)}"
        return f"{self.name}: {costs} of the reference's"


REFERENCE = CostPoint("reference", 1.0, 1.0, 1.0)


def points(rows: Sequence[Row]) -> list[CostPoint]:
    """Returns the points of those rows that have all three costs."""
    known_points = []
    for row in rows:
        values = [row.metrics.get(name) for name in ("training_time", "peak_tensor_bytes", "loss")]
        known = [value.number for value in values if value and value.kind in ("measured", "exact") and value.number > 0]
        if len(known) == 3:
            time, memory, loss = known
            known_points.append(CostPoint(row.stack, time, memory, loss, leaning=leaning(row.value(HEADLINE.name))))
    return known_points


def front(among: Sequence[CostPoint]) -> list[CostPoint]:
    """Choose the points that no other point equals in time, memory and loss while beating it in one."""

    def beaten(a: CostPoint, b: CostPoint) -> bool:
        return a.costs != b.costs and all(x >= y for x, y in zip(a.costs, b.costs, strict=True))

    return [a for a in among if not any(beaten(a, b) for b in among)]


def pareto(rows: Sequence[Row], links: Links | None = None, width: float = 760, height: float = 470) -> Drawing | None:
    """Draws time against memory, quality as shape; ringed: the front, the reference among the candidates. None without
    points. The front's names are placed first."""
    plotted = [REFERENCE, *points(rows)]
    if len(plotted) < 2:
        return None
    best = set(front(plotted))
    frame = Frame(
        68,
        14,
        width - 16,
        height - 46,
        Axis(
            "training time over the reference's" + _of_reference(rows, "training_time", _training_s),
            *around([series.time for series in plotted]),
        ),
        Axis(
            "peak tensor bytes over the reference's" + _of_reference(rows, "peak_tensor_bytes"),
            *around([series.memory for series in plotted]),
        ),
    )
    px, py = frame.px, frame.py
    labels = Labels(
        (frame.left, frame.top, frame.right, frame.bottom),
        [point_box(px(series.time), py(series.memory)) for series in plotted],
    )
    labels.take([(px(1) - 1, frame.top, px(1) + 1, frame.bottom), (frame.left, py(1) - 1, frame.right, py(1) + 1)])
    marks: list[Mark] = [
        *frame.marks(),
        Line("one", [(px(1), frame.top), (px(1), frame.bottom)]),
        Line("one", [(frame.left, py(1)), (frame.right, py(1))]),
    ]
    ordered = sorted(plotted, key=lambda point: (point not in best, point.costs, point.name))
    for position, point in enumerate(ordered):
        x, y, kind = px(point.time), py(point.memory), "reference" if point is REFERENCE else KINDS[point.leaning]
        shape: Mark = Dot(f"dot {kind}", x, y, 4.5)
        if point.lossy:
            shape = Line(f"dot {kind}", [(x, y - 6), (x + 6, y + 4), (x - 6, y + 4)], closed=True)
        ring = [Dot("ring", x, y, 7.5)] if point in best else []
        target = (links or {}).get(point.name, "") if point is not REFERENCE else ""
        name = labels.place(x, y, point.name) if position < MOST_NAMES else []
        marks.append(MarkGroup([*ring, shape, *name], point.says, target))
    label = f"Training time against peak tensor memory of {len(plotted) - 1} techniques; the table has the numbers."
    return Drawing(width, height, marks, label, "pareto")


def _of_reference(rows: Sequence[Row], metric: str, scale: Callable[[Row], float] = lambda row: 1.0) -> str:
    """Writes, for example, ``, 1 = 21.2 s``: what the reference itself takes."""
    known = [
        (value.reference * scale(row), row) for row in rows if (value := row.value(metric)).reference and value.known
    ]
    unit = {"training_time": "s", "peak_tensor_bytes": "B"}[metric]
    return f", 1 = {quantity(float(np.median([amount for amount, _ in known])), unit)}" if known else ""


def _training_s(row: Row) -> float:
    """Returns the reference's steps, by which times are recorded; this many make a training."""
    return float(row.conditions.steps)


# the ruler ----------------------------------------------------------------------------------------------------------

SEEN = 0.08  # of ln loss: how far beyond the curve's ends a loss is drawn where it is; beyond that at the edge
BAND = 2.0  # standard errors


@dataclass(frozen=True)
class RulerPoint:
    """Says where a technique stands on the reference's scaling curve: its equivalent budget over the reference's own,
    with the ends of its interval, and its final loss. ``beyond``: -1 or 1 where that is off the curve's lower or upper
    end.
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
    """Returns the points of the rows whose equivalent budget is measured or a bound."""
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
    """Computes the geometric mean over seeds of the contenders' final losses."""
    return float(np.exp(np.mean(np.log(known.losses()[1]))))


def by_curve(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Returns the rows by the scaling curve that they are read off, most rows first, each with the words that tell it
    apart: where a learning rate is tuned, the curve is the reference's at its own tuned rate."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if row.known.ruler:
            groups.setdefault(id(row.known.ruler), []).append(row)
    most_first = sorted(groups.values(), key=len, reverse=True)
    rates = [next((row.tuned[0].rate for row in group if row.tuned), 1.0) for group in most_first]
    return [
        ("" if rate == 1 else f"learning rate × {rate:g}", group) for rate, group in zip(rates, most_first, strict=True)
    ]


def ruler(
    rows: Sequence[Row], links: Links | None = None, quality: str = "", width: float = 760, height: float = 470
) -> Drawing | None:
    """Draws the reference's final loss against its budget, log-log: seeds as dots, the monotone fit with its band, and
    every technique where it ended; beyond the curve's ends at the margin, with an arrow. None where nothing was
    learned. Of several curves (:func:`by_curve`) that of most rows, with these alone."""
    groups = by_curve(rows)
    if not groups:
        return None
    rows = groups[0][1]
    curve = rows[0].known.ruler
    assert curve is not None
    marks = ruler_points(rows)
    frame = _ruler_frame(curve, [mark.loss for mark in marks], quality, width, height, room=0.1)
    labels = Labels((frame.left, frame.top, width - 4, frame.bottom), _curve_boxes(curve, frame))
    spots = [(mark, *_spot(mark, frame)) for mark in sorted(marks, key=lambda mark: (mark.loss, mark.stack))]
    labels.take(point_box(x, y) for _, x, y in spots)
    labels.take((frame.px(point.low), y - 2, frame.px(point.high), y + 2) for point, _, y in spots if not point.beyond)
    drawn: list[Mark] = [*frame.marks(), *_curve_marks(curve, frame)]
    kinds = {row.stack: KINDS[leaning(row.value("equivalent_budget"))] for row in rows}
    for position, (point, x, y) in enumerate(spots):
        name = labels.place(x, y, point.stack) if position < MOST_NAMES else []
        shape = _ruler_mark(point, x, y, frame, kinds[point.stack])
        drawn.append(MarkGroup([*shape, *name], point.says, (links or {}).get(point.stack, "")))
    label = f"The reference's final loss against its budget, with {len(marks)} techniques; the table has the numbers."
    return Drawing(width, height, drawn, label, "ruler")


@dataclass(frozen=True)
class CostFrame:
    """Holds the axes and the scaling curve that the plots of cost against quality of one board share, on a page under
    ``anchor``."""

    frame: Frame
    marks: Sequence[Mark]
    anchor: str = ""
    curve: Ruler | None = None

    @property
    def shared(self) -> Shared:
        return Shared(self.anchor, self.marks)

    @classmethod
    def of(cls, rows: Sequence[Row], anchor: str = "", width: float = 336, height: float = 240) -> CostFrame | None:
        """Builds a frame that holds all these rows, or of several curves those of most. None where there is no curve,
        or nothing on it."""
        rows = next((group for _, group in by_curve(rows)), [])
        curve = rows[0].known.ruler if rows else None
        losses = [point.loss for point in ruler_points(rows)]
        if curve is None or not losses:
            return None
        least, most = curve.ends
        costs = [min(max(cost, least / 2), 2 * most) for row in rows if (cost := _cost(row))]
        frame = _ruler_frame(curve, losses, "", width, height, 0.04, costs)
        return cls(frame, [*frame.marks(), *_curve_marks(curve, frame, seeds=False)], anchor, curve)


def _cost(row: Row) -> float | None:
    """Returns the technique's whole time, set-up included, over the reference's."""
    time = row.value("whole_time")
    return time.number if time.kind == "measured" and time.number > 0 else None


def cost_and_quality(row: Row, on: CostFrame | None = None, width: float = 336, height: float = 240) -> Drawing | None:
    """Draws what one technique's loss is worth, and what it took: the reference's scaling curve, the technique's point
    on it, and its own time over the reference's at the same loss. Left of the curve it is sooner than the reference.

    ``on``: the axes, where they are shared by rows of the same curve. None where nothing is known.
    """
    own = ruler_points([row])
    if on is None or on.curve is not row.known.ruler:
        on = CostFrame.of([row], width=width, height=height)
    if on is None or not own:
        return None
    point, cost, frame = own[0], _cost(row), on.frame
    x, y = _spot(point, frame)
    drawn: list[Mark] = [on.shared] if on.anchor else [*on.marks]
    says = point.says
    if cost:
        at = frame.px(cost)
        says += f", in {number(cost)} of its time"
        sure = KINDS[leaning(row.value(HEADLINE.name))]
        drawn += [Line(f"span dashed {sure}", [(at, y), (x, y)]), Dot(f"open {sure}", at, y, 4.5)]
    drawn += _ruler_mark(point, x, y, frame, KINDS[leaning(row.value("equivalent_budget"))])
    return Drawing(width, height, drawn, f"Cost against quality. {says}.", "ruler")


def _ruler_frame(
    curve: Ruler,
    losses: Sequence[float],
    quality: str,
    width: float,
    height: float,
    room: float,
    costs: Sequence[float] = (),
) -> Frame:
    fitted, error = curve.log_losses, BAND * curve.log_errors
    seen = [*np.log(curve.losses[np.isfinite(curve.losses)]), *(fitted - error), *(fitted + error)]
    lowest, highest = min(seen) - SEEN, max(seen) + SEEN
    seen += [min(max(math.log(loss), lowest), highest) for loss in losses]
    least, most = curve.ends
    pad = (most / least) ** room
    return Frame(
        68,
        14,
        width - 24,
        height - 46,
        Axis(
            "budget, or time, over the reference's own" if costs else "budget over the reference's own (steps)",
            min([least, *costs]) / pad,
            max([most, *costs]) * pad,
            ticks=_shares(curve, width),
        ),
        Axis(
            f"final test loss: {quality}" if quality and height > 400 else "final test loss",
            *around([math.exp(log_loss) for log_loss in seen]),
        ),
    )


def _shares(curve: Ruler, width: float) -> list[float]:
    return list(curve.budgets if width > 500 else curve.budgets[::2])


def _curve(curve: Ruler, dots: int) -> list[tuple[float, float]]:
    """Returns (budget, loss) along the fit."""
    fine = np.linspace(curve.log_budgets[0], curve.log_budgets[-1], dots)
    return [(math.exp(log_budget), math.exp(curve.log_loss(log_budget))) for log_budget in fine]


def _curve_boxes(curve: Ruler, frame: Frame) -> list[Box]:
    """Returns the boxes that keep names off the curve."""
    places = [(frame.px(budget), frame.py(loss)) for budget, loss in _curve(curve, DOTS)]
    return [(x - 2, y - 3, x + 2, y + 3) for x, y in places]


def _curve_marks(curve: Ruler, frame: Frame, seeds: bool = True) -> list[Mark]:
    dots = DOTS if seeds else DOTS // 2
    line = _curve(curve, dots)
    drawn: list[Mark] = [Line("one", [(frame.px(1), frame.top), (frame.px(1), frame.bottom)])]
    if curve.log_errors.any():
        errors = np.interp(np.log([budget for budget, _ in line]), curve.log_budgets, BAND * curve.log_errors)
        upper, lower = (
            [
                (frame.px(budget), frame.py(loss * math.exp(sign * error)))
                for (budget, loss), error in zip(line, errors, strict=True)
            ]
            for sign in (1, -1)
        )
        drawn.append(Line("band reference", [*upper, *lower[::-1]], closed=True))
    drawn.append(Line("mean reference", [(frame.px(budget), frame.py(loss)) for budget, loss in line]))
    if seeds:
        drawn += [
            Dot("seed", frame.px(math.exp(budget)), frame.py(float(loss)), 2)
            for losses in curve.losses
            for budget, loss in zip(curve.log_budgets, losses, strict=True)
            if math.isfinite(loss)
        ]
    return drawn


def _spot(point: RulerPoint, frame: Frame) -> tuple[float, float]:
    """Returns where a point is drawn: one beyond the ends in the margin, clear of the axes and their numbers."""
    x = {1: frame.right - 8, -1: frame.left + 12}[point.beyond] if point.beyond else frame.px(point.budget)
    return x, min(max(frame.py(point.loss), frame.top + 8), frame.bottom - 12)


def _ruler_mark(point: RulerPoint, x: float, y: float, frame: Frame, kind: str) -> list[Mark]:
    if point.beyond:
        tip = 10 * point.beyond
        return [Line(f"dot {kind}", [(x, y - 6), (x + tip, y), (x, y + 6)], closed=True)]
    interval = [(frame.px(point.low), y), (frame.px(point.high), y)]
    return [Line(f"span {kind}", interval), Dot(f"dot {kind}", x, y, 4.5)]


# learning curves ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Holds validation losses [points, (reference steps, loss)] of one side: seed by seed, and their mean."""

    kind: str
    seeds: tuple[Floats, ...]
    mean: Floats


def learning_curves(row: Row) -> list[Curves]:
    """Returns the curves of the reference and of the technique, over progress in reference steps; nothing where nothing
    was learned."""
    steps = row.conditions.steps
    both = []
    for index, kind in enumerate(("reference", "technique")):
        seeds = [_curve_of(pair.sides[index], steps) for pair in row.known.learned]
        seeds = [seed for seed in seeds if len(seed) > 1]
        if not seeds:
            return []
        grid = np.unique(np.concatenate([seed[:, 0] for seed in seeds]))
        inside = grid[(grid >= max(seed[0, 0] for seed in seeds)) & (grid <= min(seed[-1, 0] for seed in seeds))]
        mean = np.mean([np.interp(inside, seed[:, 0], seed[:, 1]) for seed in seeds], axis=0)
        both.append(Curves(kind, tuple(seeds), np.column_stack([inside, mean])))
    return both


def _curve_of(learned: Learned, reference_steps: int) -> Floats:
    """Returns validation loss over reference steps, where it is a number."""
    if not learned.steps:
        return np.zeros((0, 2))
    curve = [(evaluation.step / learned.steps * reference_steps, evaluation.loss) for evaluation in learned.curve]
    line = np.array(curve, dtype=np.float64).reshape(-1, 2)
    return line[np.isfinite(line).all(axis=1) & (line[:, 1] > 0)]


def loss_range(rows: Iterable[Row]) -> tuple[float, float] | None:
    """Returns the least and the largest validation loss of the rows' mean curves, an axis that they share; None without
    any. What climbs above where the references began is cut there."""
    means = [(side.kind, side.mean[:, 1]) for row in rows for side in learning_curves(row)]
    starts = [mean[0] for kind, mean in means if kind == "reference"]
    return (float(min(mean.min() for _, mean in means)), float(1.05 * max(starts))) if starts else None


@dataclass(frozen=True)
class CurveFrame:
    """Holds the axes that the learning curves of one board share, on a page under ``anchor``."""

    frame: Frame
    anchor: str = ""

    @property
    def shared(self) -> Shared:
        return Shared(self.anchor, self.frame.marks())

    @classmethod
    def of(cls, rows: Sequence[Row], anchor: str = "", width: float = 336, height: float = 240) -> CurveFrame | None:
        """Builds a frame that holds all these rows. None where nothing was learned."""
        losses = loss_range(rows)
        if losses is None:
            return None
        steps = Axis("progress (steps of the reference)", 0.0, max(row.conditions.steps for row in rows), False)
        return cls(Frame(68, 14, width - 16, height - 46, steps, Axis("validation loss", *around(losses))), anchor)


def curves(row: Row, on: CurveFrame | None = None, width: float = 336, height: float = 240) -> Drawing | None:
    """Draws validation loss against progress in reference steps: the mean over seeds, and every seed as a thin line.

    ``on``: the axes, where they are shared. None where nothing was learned.
    """
    both, on = learning_curves(row), on or CurveFrame.of([row], width=width, height=height)
    if not both or on is None:
        return None
    frame = on.frame

    def path(kind: str, line: Floats) -> Line:
        return Line(kind, [(frame.px(step), frame.py(loss)) for step, loss in _thinned(line)])

    lines = [path(f"each {side.kind}", line) for side in both for line in side.seeds if len(side.seeds) > 1]
    reference, technique = both  # the dashed one above the other: where they are one, both are seen
    means = [path("mean technique", technique.mean), path("mean reference dashed", reference.mean)]
    axes: list[Mark] = [on.shared] if on.anchor else frame.marks()
    label = f"Validation loss of {row.stack} and of its reference against progress."
    return Drawing(width, height, [*axes, *lines, *means], label, "curves")


def _thinned(line: Floats) -> Floats:
    """Keeps at most DOTS of its points, the first and the last among them."""
    return line[np.linspace(0, len(line) - 1, DOTS).astype(int)] if len(line) > DOTS else line


# intervals sorted by effect -----------------------------------------------------------------------------------------

FOREST_LINE, FOREST_TOP = 20, 26


def forest(rows: Sequence[Row], links: Links | None = None, width: float = 760) -> Drawing | None:
    """Draws the time to the same quality as a speedup, each row's interval on one axis, the best first; bounds are
    arrows. A row without an interval is an open dot. None where no row has a number."""
    known = [(row, row.value(HEADLINE.name)) for row in rows if row.value(HEADLINE.name).kind in ("measured", "bound")]
    known = [(row, value) for row, value in known if 0 < value.number < math.inf]
    if not known:
        return None
    known.sort(key=lambda pair: (pair[1].number, pair[0].stack))
    places = [1.0]
    for _, value in known:
        interval = value.speedup
        places += [interval.low, interval.high] if interval and bounded(interval) else [1 / value.number]
    names = 12 + LETTER * max(len(shortened(row.stack)) for row, _ in known)
    height = FOREST_TOP + FOREST_LINE * len(known) + 50
    axis = Axis(
        "time to the same quality, as a speedup over the reference (log scale)",
        *around([min(max(place, 1 / 16), 16) for place in places]),
    )
    frame = Frame(names + 8, FOREST_TOP - 8, width - 150, height - 46, axis)
    one = frame.px(1)
    marks: list[Mark] = [*frame.marks(), Line("one", [(one, frame.top), (one, frame.bottom)])]
    for position, (row, value) in enumerate(known):
        y = FOREST_TOP + FOREST_LINE * (position + 0.5)
        marks.append(_forest_line(row, value, frame, y, names, (links or {}).get(row.stack, "")))
    label = f"Time to the same quality of {len(known)} techniques with intervals, the best first."
    return Drawing(width, height, marks, label, "forest")


def _forest_line(row: Row, value: MetricValue, frame: Frame, y: float, names: float, target: str) -> MarkGroup:
    interval, kind, shown = value.speedup, KINDS[leaning(value)], shown_number(value, HEADLINE.direction)
    x = frame.px(shown)
    drawn: list[Mark] = [Words(names, y + 4, shortened(row.stack), "end", "name")]
    if value.kind == "bound":
        tip = 10 if value.at_most else -10
        drawn.append(Line(f"dot {kind}", [(x, y - 5), (x + tip, y), (x, y + 5)], closed=True))
    elif interval and bounded(interval):
        drawn += [Line(f"span {kind}", [(frame.px(interval.low), y), (frame.px(interval.high), y)])]
        drawn += [Dot(f"dot {kind}", x, y, 4)]
    else:
        drawn.append(Dot(f"open {kind}", x, y, 4))
    words = f"{mark(value, HEADLINE.direction)}{number(shown, decimals(interval))} {ends(interval)}".strip()
    stale = "†" if row.unverified else ""
    drawn.append(Words(frame.right + 10, y + 4, words + stale, kind=f"number {kind}"))
    return MarkGroup(drawn, f"{row.stack}: {words}", target)
