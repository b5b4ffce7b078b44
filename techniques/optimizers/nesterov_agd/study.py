"""Checks the theorem on logistic regression over a frozen baseline's features: the gap after every gradient, and its
bound.

``convergence``: f(x_k) - f* under gradient descent and under acceleration, each with its bound: L ||x_0 - x*||^2 / 2k
and 2 L ||x_0 - x*||^2 / (k + 1)^2. ``condition``: gradients until the gap is a millionth of the first, for strongly
convex problems of growing condition number kappa; their ratio should grow as sqrt(kappa).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.optimizers.nesterov_agd.sequence import accelerated, strongly_convex_momentum
from techniques.optimizers.shared.linear_probe import LinearProbe, linear_probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 1000
MOST_STEPS = 20_000
CONDITIONS = (1e2, 3e2, 1e3, 3e3)
TARGET = 1e-6
MILD = 1e4  # the condition number of the first table, where both bounds are those of convex functions


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``convergence`` and ``condition``; the baseline is trained once, and nothing is recorded."""
    lab.progress(0.0, "training the baseline whose features are classified")
    probe = linear_probe(lab.setting)
    lab.progress(0.3, "descending")
    return [convergence(probe), condition(probe)]


def descended(probe: LinearProbe, rate: float) -> Iterator[Tensor]:
    """Yields x_1, x_2, ... of gradient descent."""
    x = probe.start
    while True:
        x = x - rate * probe.gradient(x)
        yield x


def conditioned(probe: LinearProbe, kappa: float) -> LinearProbe:
    """Returns the problem with the ridge that makes L / mu = ``kappa``."""
    return replace(probe, ridge=replace(probe, ridge=0.0).smoothness / (kappa - 1))


def convergence(probe: LinearProbe, steps: int = STEPS) -> StudyTable:
    """Returns the gaps and bounds after k = 1, 2, 3, 5, 8, ... gradients, and the largest share of the bound over every
    k."""
    probe = conditioned(probe, MILD)
    smoothness, least = probe.smoothness, probe.minimiser()
    best, squared_distance = probe.value(least), least.square().sum().item()
    shown = {round(10 ** (i / 5)) for i in range(int(5 * math.log10(steps)) + 1)}
    pairs = zip(descended(probe, 1 / smoothness), accelerated(probe.gradient, probe.start, 1 / smoothness))
    rows, worst = [], 0.0
    for k, (plain, fast) in enumerate(islice(pairs, steps), 1):
        gaps = probe.value(plain) - best, probe.value(fast) - best
        bounds = smoothness * squared_distance / (2 * k), 2 * smoothness * squared_distance / (k + 1) ** 2
        worst = max(worst, gaps[1] / bounds[1])
        if k in shown:
            rows.append((k, *gaps, *bounds))
    columns = ("gradients", "gradient_descent", "accelerated", "gradient_descent_bound", "accelerated_bound")
    note = f"f(x_k) - f*; over all {steps} gradients acceleration uses at most {worst:.3g} of its bound"
    return StudyTable("convergence", columns, rows, note)


def condition(probe: LinearProbe, conditions: Sequence[float] = CONDITIONS) -> StudyTable:
    """Counts the gradients to TARGET of the first gap by condition number; None where MOST_STEPS are not enough."""
    rows = []
    for kappa in conditions:
        problem = conditioned(probe, kappa)
        best, rate = problem.value(problem.minimiser()), 1 / problem.smoothness
        goal = best + TARGET * (problem.value(problem.start) - best)
        plain = first(problem, descended(problem, rate), goal)
        fast = first(problem, accelerated(problem.gradient, problem.start, rate, strongly_convex_momentum(kappa)), goal)
        ratio = plain / fast if plain and fast else None
        rows.append((kappa, plain, fast, ratio, ratio / math.sqrt(kappa) if ratio else None))
    columns = ("condition_number", "gradient_descent", "accelerated", "ratio", "ratio_over_root_of_condition")
    return StudyTable("condition", columns, rows, f"gradients until the gap is {TARGET:g} of the first")


def first(probe: LinearProbe, points: Iterator[Tensor], goal: float) -> int | None:
    """Returns the number of the first point whose value is at most ``goal``, from 1; None beyond MOST_STEPS."""
    return next((k for k, x in enumerate(islice(points, MOST_STEPS), 1) if probe.value(x) <= goal), None)


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the gaps over the number of gradients, both axes logarithmic; bounds are dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    table = tables[0]
    gradients = [row[0] for row in table.rows]
    for column, colour in ((1, "C0"), (2, "C1")):
        axes.loglog(gradients, [row[column] for row in table.rows], color=colour, label=table.columns[column])
        axes.loglog(gradients, [row[column + 2] for row in table.rows], "--", color=colour, label="its bound")
    axes.set(xlabel="gradients", ylabel="f(x) - f*, logistic regression on frozen features")
    axes.legend()
    return figure
