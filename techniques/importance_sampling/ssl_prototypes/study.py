"""When to keep the hard and when the easy examples: in the theory's perceptron, and on the baseline's own data.

``perceptron``: a student's error over examples a dimension and the share of them that is kept
(:mod:`techniques.importance_sampling.ssl_prototypes.perceptron`). Of few examples the easy ones are worth most, of
many the hard ones (Sorscher et al., arXiv 2206.14486, section 2 and figure 1). ``scaling``: the power of the number of
kept examples with which the error falls: at random, and at the best share of hard ones. ``crossover``: the same
question to the baseline, over the share that is kept of all and of ever fewer of its examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.measure.lab import Lab, Table
from techniques.importance_sampling.ssl_prototypes.perceptron import error
from techniques.shared.pruning_study import ORDERS, KeptRow, draw, kept_rows, kept_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("vit",)
DIMENSIONS = 60
ALPHAS = (1.0, 3.0, 10.0, 30.0, 60.0)
KEEPS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
SHARES = (0.1, 0.3, 1.0)
KEPT = (0.4, 0.6, 0.8)
PLOTTED = 0.2
PERCEPTRON = f"Angle of student to teacher over pi in {DIMENSIONS} dimensions; the largest margin on what is kept"
SCALING = (
    "Power of the kept examples a dimension with which the error falls, by least squares on the logarithms: of "
    "examples at random, and of the lowest error over all shares of hard ones with as many kept"
)


def study(lab: Lab) -> list[Table]:
    """The tables ``perceptron``, ``scaling`` and ``crossover``; nothing is recorded of the first two."""
    seeds = range(lab.seeds)
    rows = []
    for done, alpha in enumerate(ALPHAS):
        lab.progress(done / len(ALPHAS) / 2, f"perceptrons with {alpha:g} examples a dimension")
        for keep, order in product(KEEPS, ORDERS):
            if keep < 1 or order == "random":  # all examples are all examples
                errors = [error(DIMENSIONS, alpha, keep, order, seed) for seed in seeds]
                rows.append((alpha, keep, order, alpha * keep, fmean(errors), float(np.std(errors))))
    columns = ("alpha", "keep", "order", "kept_alpha", "error", "deviation")
    trained = [
        row for share in SHARES for row in kept_rows(lab, "ssl_prototypes", KEPT, share=share, parts=len(SHARES))
    ]
    return [
        Table("perceptron", columns, rows, PERCEPTRON),
        scaling(rows),
        kept_table("crossover", trained),
    ]


def scaling(rows: Sequence[tuple[Any, ...]]) -> Table:
    """The powers that SCALING describes."""
    at_random = {kept: err for _, keep, order, kept, err, _ in rows if order == "random" and keep == 1}
    hard: dict[float, list[float]] = {}
    for _, keep, order, kept, err, _ in rows:
        if order == "hard" or keep == 1:
            hard.setdefault(round(kept, 9), []).append(err)
    best = envelope({kept: min(errors) for kept, errors in hard.items()})
    made = [(name, len(each), power(each)) for name, each in (("random", at_random), ("best of hard", best))]
    return Table("scaling", ("order", "points", "power"), made, SCALING)


def envelope(errors: dict[float, float]) -> dict[float, float]:
    """Those by the number kept that no smaller number undercuts."""
    lowest: dict[float, float] = {}
    for kept, err in sorted(errors.items()):
        if not lowest or err < min(lowest.values()):
            lowest[kept] = err
    return lowest


def power(errors: dict[float, float]) -> float | None:
    """The slope of log error over log examples; None of fewer than two points."""
    if len(errors) < 2:
        return None
    x, y = (np.log(list(each)) for each in (errors.keys(), errors.values()))
    return float(np.polyfit(x, y, 1)[0])


def plot(tables: Sequence[Table]) -> Figure:
    """The perceptron's error over the examples there are; and the baseline's loss over the share kept, a panel for each
    number of examples."""
    from matplotlib.figure import Figure

    theory, _, crossover = tables
    trained = [KeptRow(*row) for row in crossover.rows]
    counts = sorted({each.examples for each in trained})
    figure = Figure(figsize=(4 + 3 * len(counts), 3.5), layout="constrained")
    first, *panels = figure.subplots(1, 1 + len(counts), squeeze=False)[0]
    for order in ORDERS:
        own = [row for row in theory.rows if row[1] == PLOTTED and row[2] == order]
        first.errorbar(
            [row[0] for row in own], [row[4] for row in own], [row[5] for row in own], marker="o", label=order
        )
    first.set(
        title=f"perceptron, {PLOTTED:.0%} kept",
        xlabel="examples a dimension",
        ylabel="error",
        xscale="log",
        yscale="log",
    )
    first.legend(fontsize="small")
    for axes, count in zip(panels, counts):
        draw(axes, [each for each in trained if each.examples == count], f"{count} examples")
    return figure
