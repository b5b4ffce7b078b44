"""Measures the averaged weights' lead: their loss over the current weights' at every evaluation of the same run.

Kaddour (arXiv 2209.14981), figures 1 and 2, under two schedules: the recipe's own, whose rate decays to the end, and
with the rate held after the warm-up. The training run does not notice the averaging, so that a second contender of the
same seed evaluates the same run's current weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from suite.judge.statistics import replicate_interval
from suite.loop.recipe import Recipe
from suite.record.job import canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAIN = "Loss of the averaged over that of the current weights, mean and 95 % interval over the seeds; rate: of its peak"
AHEAD = (
    "Evaluations of all seeds in the second half of the run, the share of them at which the averaged weights have the "
    "lower loss, and the mean ratio at the end: under 1 with the rate held, close to 1 once it has decayed"
)


class Gain(NamedTuple):
    """Records one evaluation under one schedule; no interval for one seed."""

    schedule: str
    step: int
    rate: float
    seeds: int
    ratio: float
    low: float | None
    high: float | None


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``gain`` (every evaluation) and ``ahead`` (each schedule's second half)."""
    decayed, held, current = (canonical(spelled) for spelled in ("lawa", "lawa:decay=false", "lawa:k=1,decay=false"))
    runs = lab.runs([decayed, held, current])
    averaged = {run.seed: run for _, run in runs[held]}
    pairs = {
        "decayed": runs[decayed],
        "held": [(run, averaged[run.seed]) for _, run in runs[current] if run.seed in averaged],
    }
    ratios = {schedule: ratios_of(pair) for schedule, pair in pairs.items()}
    gains = [
        gain(schedule, step, seeds, next(run for _, run in pairs[schedule] if run.curve))
        for schedule, by_step in ratios.items()
        for step, seeds in by_step.items()
    ]
    ahead = [(schedule, *share_ahead(by_step)) for schedule, by_step in ratios.items() if by_step]
    return [
        StudyTable("gain", Gain._fields, [tuple(row) for row in gains], GAIN),
        StudyTable("ahead", ("schedule", "evaluations", "ahead", "ratio_at_the_end"), ahead, AHEAD),
    ]


def ratios_of(pairs: Sequence[tuple[Learned, Learned]]) -> dict[int, list[float]]:
    """Returns, by step, the second run's validation loss over the first's for each seed; without the start, where they
    agree."""
    ratios: dict[int, list[float]] = {}
    for current, averaged in pairs:
        losses = {evaluation.step: evaluation.loss for evaluation in current.curve}
        for evaluation in averaged.curve:
            if evaluation.step and evaluation.step in losses:
                ratios.setdefault(evaluation.step, []).append(evaluation.loss / losses[evaluation.step])
    return ratios


def gain(schedule: str, step: int, ratios: Sequence[float], run: Learned) -> Gain:
    recipe = Recipe(**run.recipe)
    spread = replicate_interval(ratios) if len(ratios) > 1 else None
    return Gain(
        schedule,
        step,
        recipe.learning_rate_at(step - 1) / recipe.learning_rate,
        len(ratios),
        fmean(ratios),
        spread.low if spread else None,
        spread.high if spread else None,
    )


def share_ahead(ratios: dict[int, list[float]]) -> tuple[int, float, float]:
    """Returns the three numbers that AHEAD describes."""
    last = max(ratios)
    late = [ratio for step, seeds in ratios.items() if 2 * step > last for ratio in seeds]
    return len(late), fmean(ratio < 1 for ratio in late), fmean(ratios[last])


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the ratio over the step, a line for each schedule; at 1 nothing is gained."""
    from matplotlib.figure import Figure

    gains = [Gain(*record) for record in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for schedule in dict.fromkeys(row.schedule for row in gains):
        own = [row for row in gains if row.schedule == schedule]
        axes.plot([row.step for row in own], [row.ratio for row in own], marker="o", label=f"rate {schedule}")
    axes.axhline(1, linestyle="--", color="grey", label="nothing gained")
    axes.set(xlabel="step", ylabel="loss of the averaged over the current weights")
    axes.legend()
    return figure
