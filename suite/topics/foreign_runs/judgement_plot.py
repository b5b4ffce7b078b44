"""Draws a judgement: final losses against budgets, log-log; the reference's curve, every run, each length's reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from suite.show.pictures.axes import MOST_TICKS, Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, MarkGroup, Words
from suite.topics.foreign_runs.judgement import JudgedRuns
from suite.topics.foreign_runs.judgement_in_words import budget_text, sentence, worth_text
from suite.topics.foreign_runs.run_comparison import BudgetReading, by_length

WIDTH, HEIGHT = 760.0, 470.0
DOTS = 60
LEAST_GAP = 0.09  # of the axis, between two ticks


def drawing(judgement: JudgedRuns) -> Drawing:
    """Returns the plot. The reference is grey; a length of the contender is coloured where its interval excludes 1."""
    lengths = judgement.curve.lengths if judgement.curve else by_length(judgement.reference)
    budgets = [length.budget for length in lengths] + [reading.contender.budget for reading in judgement.readings]
    ends = [reading.contender.budget * reading.worth.estimate for reading in _read(judgement)]
    losses = [math.exp(run.log_loss) for run in (*judgement.reference, *judgement.contender)]
    losses += [math.exp(length.mean) for length in lengths]
    frame = Frame(
        78,
        34,
        WIDTH - 24,
        HEIGHT - 46,
        _budgets(sorted({*budgets}), *around([*budgets, *ends], 0.1), judgement.unit),
        Axis(
            f"final {judgement.metric}" if judgement.better == "lower" else f"lacking {judgement.metric}",
            *around(losses),
        ),
    )
    drawn: list[Mark] = [*frame.marks(), *_curve(judgement, frame)]
    for length in lengths:
        drawn += [Dot("seed", frame.px(length.budget), frame.py(math.exp(y)), 2.5) for y in length.log_losses]
    for reading in judgement.readings:
        drawn.append(MarkGroup(_reading(reading, frame), f"{worth_text(reading)}"))
    drawn.append(
        Words(8, 20, f"{judgement.metric} of {len(judgement.contender)} runs against {_others(judgement)}", kind="head")
    )
    return Drawing(WIDTH, HEIGHT, drawn, sentence(judgement), "ruler")


def _budgets(known: Sequence[float], low: float, high: float, unit: str) -> Axis:
    """Returns the axis of budgets, with a tick at each length; of many, at the first, the last and some between."""
    ticks = [known[round(place)] for place in np.linspace(0, len(known) - 1, min(len(known), MOST_TICKS))]
    while close := [b for a, b in pairwise(ticks) if math.log(b / a) < LEAST_GAP * math.log(high / low)]:
        ticks.remove(close[0])
    words = [budget_text(tick, unit).removesuffix(f" {unit}") for tick in ticks]
    return Axis(f"budget ({unit})", low, high, ticks=ticks, words=words)


def _others(judgement: JudgedRuns) -> str:
    return f"{len(judgement.reference)} of the reference"


def _read(judgement: JudgedRuns) -> list[BudgetReading]:
    return [reading for reading in judgement.readings if reading.kind in ("measured", "extrapolated")]


def _curve(judgement: JudgedRuns, frame: Frame) -> list[Mark]:
    if judgement.curve is None:
        return []
    low, high = judgement.curve.ends
    points = np.exp(np.linspace(math.log(low), math.log(high), DOTS)[1:-1])
    ruler = judgement.curve.ruler
    line = [(frame.px(budget), frame.py(ruler.loss(budget))) for budget in (low, *map(float, points), high)]
    return [Line("mean reference", line)]


def _reading(reading: BudgetReading, frame: Frame) -> list[Mark]:
    """Draws a length's runs, and the way from its own budget to the equivalent one, with the ends of the interval."""
    kind = ("better" if reading.better else "worse") if reading.decided else "same"
    own = reading.contender
    x, y = frame.px(own.budget), frame.py(math.exp(own.mean))
    drawn: list[Mark] = [Dot(f"open {kind}", x, frame.py(math.exp(run)), 3) for run in own.log_losses]
    if reading.kind in ("measured", "extrapolated"):
        at = frame.px(own.budget * reading.worth.estimate)
        span = [frame.px(max(own.budget * end, frame.x.low)) for end in (reading.worth.low, reading.worth.high)]
        drawn += [Line(f"span dashed {kind}", [(x, y), (at, y)]), Line(f"span {kind}", [(span[0], y), (span[1], y)])]
        drawn += [Dot(f"dot {kind}", at, y, 4.5)]
    return drawn
