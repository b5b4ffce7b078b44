"""Tells when to keep the hard and when the easy examples: in the theory's perceptron, and on the baseline's own data.

``perceptron``: a student's error over examples a dimension and the share of them that is kept
(:mod:`techniques.importance_sampling.ssl_prototypes.perceptron`). Of few examples the easy ones are worth most, of
many the hard ones (Sorscher et al., arXiv 2206.14486, section 2 and figure 1). ``frontier``: the error at the best
share of hard ones beside that of as many at random, over the number kept, and the powers by which both fall.
``crossover``: the same question to the baseline, over the share that is kept of all and of ever fewer of its examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.topics.studies.lab import Lab, StudyTable
from techniques.importance_sampling.shared.pruning_study import ORDERS, KeptRow, draw, kept_rows, kept_table
from techniques.importance_sampling.ssl_prototypes.perceptron import error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("vit",)
DIMENSIONS = 60
ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
KEEPS = (0.0625, 0.125, 0.25, 0.5, 1.0)  # powers of two, as ALPHAS, so that as many are kept at several shares
SHARES = (0.1, 0.3, 1.0)
KEPT = (0.4, 0.6, 0.8)
PLOTTED = 0.25
PERCEPTRON = f"Angle of student to teacher over pi in {DIMENSIONS} dimensions; the largest margin on what is kept"
FRONTIER = (
    "The lowest error of as many kept examples a dimension, hard ones of more or all of them, and the share at which "
    f"it is, of at most {ALPHAS[-1]:g} to choose from; the error of as many at random. Powers: of the number kept, by "
    "which the errors fall from the row above"
)


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``perceptron``, ``frontier`` and ``crossover``; nothing is recorded of the first two."""
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
        StudyTable("perceptron", columns, rows, PERCEPTRON),
        frontier(rows),
        kept_table("crossover", trained),
    ]


def frontier(rows: Sequence[tuple[Any, ...]]) -> StudyTable:
    """Returns a table with a row for each number of examples that a whole data set has, too."""
    points: list[tuple[float, float, float, float]] = []
    for alpha, at_random in sorted((alpha, err) for _, keep, _, alpha, err, _ in rows if keep == 1):
        hard = [(err, keep) for _, keep, order, own, err, _ in rows if own == alpha and (order == "hard" or keep == 1)]
        points.append((alpha, *min(hard), at_random))
    table: list[tuple[float | None, ...]] = []
    for before, (alpha, best, share, at_random) in zip((None, *points), points):
        powers: tuple[float | None, float | None] = (None, None)
        if before:
            powers = power(before[0], before[1], alpha, best), power(before[0], before[3], alpha, at_random)
        table.append((alpha, share, best, powers[0], at_random, powers[1]))
    return StudyTable(
        "frontier", ("kept_alpha", "share", "best_of_hard", "power", "random", "random_power"), table, FRONTIER
    )


def power(x: float, y: float, next_x: float, next_y: float) -> float:
    """Returns the p of y = c x^p through two points."""
    return math.log(next_y / y) / math.log(next_x / x)


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the perceptron's error over the examples there are; and the baseline's loss over the share kept, a panel
    for each number of examples."""
    from matplotlib.figure import Figure

    theory, _, crossover = tables
    trained = [KeptRow(*row) for row in crossover.rows]
    counts = sorted({parameter.examples for parameter in trained})
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
        draw(axes, [parameter for parameter in trained if parameter.examples == count], f"{count} examples")
    return figure
