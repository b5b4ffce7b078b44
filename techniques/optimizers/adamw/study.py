"""Is the best decay independent of the learning rate? A grid of both for AdamW, and for Adam with L2 regularisation.

Loshchilov & Hutter (arXiv 1711.05101), figure 2: with L2 the good settings lie along a diagonal, with the decay
decoupled in a basin along the axes. AdamW's decay is the paper's lambda, which the schedule multiplies and the learning
rate does not; L2's is the coefficient of theta in the gradient. Runs are trained here and not recorded: no stack sets
the strength of L2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import correlation, fmean
from typing import TYPE_CHECKING

from suite.entries.jobs import run_of
from suite.loop.recipe import Recipe
from suite.loop.run import Diverged
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, Technique
from suite.record.job import Job
from suite.topics.studies.lab import Cell, Lab, StudyTable
from techniques.shared.adam import Adam, Decay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # of the recipe's
DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SIDES: dict[str, Decay] = {"AdamW": "decoupled", "Adam with L2": "coupled"}
HARMLESS = 0.02  # more loss than the least at the same rate

GRID = "Final validation losses, means over the seeds; the rate is in the recipe's; infinite where a run diverged"
BEST = f"The decay of least loss at each rate, and the largest that costs at most {HARMLESS:.0%} more"
RIDGE = "How the logarithms of these decays correlate with the rate's; n/a: the decay is the same at every rate"


@dataclass
class Decayed(Technique):
    """Runs Adam at ``rate`` times the recipe's learning rate, with ``strength`` in the form of the decay."""

    decay: Decay = "coupled"
    rate: float = 1.0
    strength: float = 0.0

    def recipe(self, recipe: Recipe) -> Recipe:
        rate = recipe.learning_rate * self.rate
        # torch's decoupled form multiplies by the learning rate, the paper's does not
        strength = self.strength / rate if self.decay == "decoupled" else self.strength
        return replace(recipe, learning_rate=rate, weight_decay=strength)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Adam:
        betas, fused = (recipe.beta1, recipe.beta2), recipe.fused_optimizer
        return Adam(parameters, recipe.learning_rate, betas, recipe.eps, decay=self.decay, fused=fused)


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``losses``, ``best`` and ``correlation``, of as many seeds as the time allows, and of one at
    least."""
    cells = [(side, rate, decay) for side in SIDES for rate in RATES for decay in DECAYS]
    losses: dict[tuple[str, float, float], list[float]] = {cell: [] for cell in cells}
    start_s = time.monotonic()
    for seed in range(lab.seeds):
        if seed and (time.monotonic() - start_s) * (seed + 1) / seed > 60 * lab.minutes:
            lab.warn(f"the budget of {lab.minutes:g} minutes is enough for {seed} of {lab.seeds} seeds")
            break
        for number, cell in enumerate(cells):
            lab.progress((seed + number / len(cells)) / lab.seeds, f"seed {seed}: {cell[0]}, rate {cell[1]:g}")
            losses[cell].append(final_loss(lab, *cell, seed))
    return tables([(*cell, len(values), fmean(values)) for cell, values in losses.items()])


def final_loss(lab: Lab, side: str, rate: float, decay: float, seed: int) -> float:
    """Returns the validation loss after a run at one setting; infinite if it diverges."""
    technique = Decayed(SIDES[side], rate=rate, strength=decay)
    run = run_of(Job(setting=lab.setting, seed=seed), technique=Stack({"adam": technique}))
    try:
        run.train(run.recipe.steps)
        return run.evaluate()["loss"]
    except Diverged:
        return math.inf


def tables(rows: Sequence[tuple[str, float, float, int, float]]) -> list[StudyTable]:
    """Builds the study's tables of rows (side, rate, decay, seeds, loss)."""
    best: list[tuple[str, float, float, float, float]] = []
    for side, rate in dict.fromkeys(row[:2] for row in rows):
        losses = {decay: loss for *cell, decay, _, loss in rows if cell == [side, rate]}
        decay = min(losses, key=losses.__getitem__)
        least = losses[decay]
        harmless = max(decay for decay, loss in losses.items() if loss <= (1 + HARMLESS) * least)
        best.append((side, rate, least, decay, harmless))
    ridges: list[tuple[Cell, ...]] = []
    for side in dict.fromkeys(row[0] for row in best):
        rates, *decays = zip(*([math.log(rate) for rate in (row[1], *row[3:])] for row in best if row[0] == side))
        ridges.append((side, *(correlation(rates, decay) if len(set(decay)) > 1 else None for decay in decays)))
    return [
        StudyTable("losses", ("side", "rate", "decay", "seeds", "final_loss"), list(rows), GRID),
        StudyTable("best", ("side", "rate", "final_loss", "best_decay", "harmless_decay"), list(best), BEST),
        StudyTable("correlation", ("side", "best_decay", "harmless_decay"), ridges, RIDGE),
    ]


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws a heat map of the final losses for each side; crosses mark the best decays, lines the largest harmless
    ones."""
    import numpy as np
    from matplotlib.figure import Figure

    sides = list(dict.fromkeys(row[0] for row in tables[0].rows))
    losses = [row[4] for row in tables[0].rows if math.isfinite(row[4])]
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, side in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True):
        cells = {row[1:3]: row[4] for row in tables[0].rows if row[0] == side}
        rates, decays = (sorted(set(values)) for values in zip(*cells, strict=True))
        grid = np.array([[cells[rate, decay] for rate in rates] for decay in decays])
        shown = axes.imshow(grid, origin="lower", vmin=min(losses), vmax=max(losses), cmap="viridis")
        best, harmless = zip(*(map(decays.index, row[3:]) for row in tables[1].rows if row[0] == side), strict=True)
        axes.plot(best, "x", color="white")
        axes.plot(harmless, color="white")
        axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_yticks(range(len(decays)), [f"{decay:g}" for decay in decays])
        axes.set(title=side, xlabel="learning rate (of the recipe's)", ylabel="decay")
    figure.colorbar(shown, ax=figure.axes, label="final validation loss")
    return figure
