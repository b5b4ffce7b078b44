"""Studies which depths train: for ``rezero``, ``fixup``, ``skipinit``, ``tfixup`` and ``layerscale``.

The first four say that their initialisation takes the place of norms at any depth, the last that it helps them. So the
baseline's blocks are as many as a study asks for, of the baseline's own (small) width, and three sides train as long as
each other: the baseline with its norms, the same without them, and the technique. What has trained is the common
predicate of such experiments: a loss below 0.8 ln V, V being the number of classes, and no NaN on the way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from suite.entries.spelling import build
from suite.loop.run import Diverged, Run
from suite.loop.stack import Stack
from suite.topics.studies.lab import Lab, StudyTable
from techniques.initialization.shared.depth import WithoutNorms, deep_run, first_step, gradient_step, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("gpt", "bert", "vit")  # with classes, so that ln V is a loss
DEPTHS = (4, 8, 16, 32, 64)
STEPS = 300
TRAINED = 0.8  # of ln V

LOSSES = f"Final validation losses, means over the seeds; trained: the share of the seeds below {TRAINED} ln V"
STEP = (
    "How far one step moves the outputs, root mean square: the first of a run, at the rate that it begins with, and a "
    "small one along the gradient, in units of the rate. Slopes are of their logarithms over the depth's: 0 where a "
    "step does the same at any depth"
)


class Step(NamedTuple):
    """Records one side at one depth; the slopes are the side's."""

    side: str
    depth: int
    first_step: float
    first_step_slope: float
    gradient_step: float
    gradient_step_slope: float


class Trained(NamedTuple):
    """Records one side at one depth; the loss is infinite where a run diverged."""

    side: str
    depth: int
    seeds: int
    trained: float
    loss: float
    bar: float  # TRAINED ln V


def depth_study(lab: Lab, technique: str) -> list[StudyTable]:
    """Returns the tables ``trainable_depth`` and ``one_step``, of as many seeds as the time allows, and of one at
    least."""
    setting = lab.setting.but(steps=lab.setting.steps or STEPS)
    sides: dict[str, Callable[[], Stack]] = {  # an instance serves one run
        "with norms": lambda: Stack({}),
        "without norms": lambda: Stack({"without norms": WithoutNorms()}),
        technique: lambda: build(technique),
    }
    cells = [(side, depth) for depth in DEPTHS for side in sides]
    ends: dict[tuple[str, int], list[tuple[float, float]]] = {cell: [] for cell in cells}
    start_s = time.monotonic()
    for seed in range(lab.seeds):
        if seed and (time.monotonic() - start_s) * (seed + 1) / seed > 60 * lab.minutes:
            lab.warn(f"the budget of {lab.minutes:g} minutes is enough for {seed} of {lab.seeds} seeds")
            break
        for number, (side, depth) in enumerate(cells):
            lab.progress((seed + number / len(cells)) / lab.seeds, f"seed {seed}: {depth} blocks, {side}")
            ends[side, depth].append(final_loss(deep_run(setting, sides[side](), depth, seed)))
    rows = []
    for (side, depth), seeds in ends.items():
        losses, bar = [loss for loss, _ in seeds], TRAINED * seeds[0][1]
        rows.append(Trained(side, depth, len(seeds), fmean(loss < bar for loss in losses), fmean(losses), bar))
    steps: list[Step] = []
    for side, stack in sides.items():
        firsts, gradients = (
            [measured(deep_run(setting, stack(), depth)) for depth in DEPTHS]
            for measured in (first_step, gradient_step)
        )
        slopes = slope(DEPTHS, firsts), slope(DEPTHS, gradients)
        steps += [
            Step(side, depth, first, slopes[0], gradient, slopes[1])
            for depth, first, gradient in zip(DEPTHS, firsts, gradients, strict=True)
        ]
    return [
        StudyTable("trainable_depth", Trained._fields, [tuple(row) for row in rows], LOSSES),
        StudyTable("one_step", Step._fields, [tuple(step) for step in steps], STEP),
    ]


def final_loss(run: Run) -> tuple[float, float]:
    """Returns the validation loss after a whole run, infinite if it diverges, and ln V."""
    with torch.no_grad():
        chance = math.log(run.baseline.forward(run.model, run.next_batch()[0]).logits.shape[-1])
    try:
        run.train(run.recipe.steps)
        return run.evaluate()["loss"], chance
    except Diverged:
        return math.inf, chance


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws final loss and a gradient step's effect over the depth, a line for each side; crosses at the top
    diverged."""
    from matplotlib.figure import Figure

    rows, steps = [Trained(*record) for record in tables[0].rows], [Step(*row) for row in tables[1].rows]
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, side in enumerate(dict.fromkeys(row.side for row in rows)):
        line = [row for row in rows if row.side == side]
        finite = [row for row in line if math.isfinite(row.loss)]
        look: dict[str, Any] = {"color": f"C{number}", "label": side}
        left.plot([row.depth for row in finite], [row.loss for row in finite], marker="o", **look)
        lost = [row.depth for row in line if not math.isfinite(row.loss)]
        left.plot(lost, [0.97] * len(lost), "x", color=f"C{number}", transform=left.get_xaxis_transform())
        changes = {step.depth: step.gradient_step for step in steps if step.side == side}
        right.plot([*changes], [*changes.values()], marker="o", **look)
    left.axhline(rows[0].bar, linestyle="--", color="grey", label=f"{TRAINED} ln V")
    left.set(ylabel="final validation loss")
    right.set(ylabel="change of the outputs by a step along the gradient", yscale="log")
    for axes in (left, right):
        axes.set(xlabel="blocks", xscale="log")
        axes.set_xticks(DEPTHS, map(str, DEPTHS))
        axes.minorticks_off()
        axes.legend()
    return figure
