"""How many dimensions fine-tuning needs: accuracy over d, with and without scales of layers, and d_90 of both.

Aghajanyan et al. (arXiv 2012.13255), section 3 and figure 1: d_90 is the smallest d whose subspace gives 90 % of full
fine-tuning's accuracy. ``accuracy`` has every d; ``d_90`` the smallest of them that is enough for each method.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from suite.measure.lab import Lab, Table
from suite.record.job import canonical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = (10, 30, 100, 300, 1000, 3000)
ENOUGH = 0.9
METHODS = {"SAID": "true", "DID": "false"}
POINTS = "Means over the seeds; share: of full fine-tuning's accuracy after as many steps"
SMALLEST = f"The smallest d with {ENOUGH:.0%} of full fine-tuning's accuracy; none where it is more than the largest"


class Point(NamedTuple):
    """One method at one dimension."""

    method: str
    dimension: int
    seeds: int
    loss: float
    accuracy: float
    share: float


def study(lab: Lab) -> list[Table]:
    """The tables ``accuracy`` and ``d_90``."""
    stacks = {
        (method, dimension): canonical(f"intrinsic_dim:dimension={dimension},structure_aware={aware}")
        for method, aware in METHODS.items()
        for dimension in DIMENSIONS
    }
    runs = lab.runs(list(stacks.values()))
    points = []
    for (method, dimension), stack in stacks.items():
        ends = [(full.final, own.final) for full, own in runs[stack] if full.final and own.final]
        if ends:
            shares = [own.metrics["accuracy"] / full.metrics["accuracy"] for full, own in ends]
            losses, accuracies = zip(*((own.loss, own.metrics["accuracy"]) for _, own in ends), strict=True)
            points.append(Point(method, dimension, len(ends), fmean(losses), fmean(accuracies), fmean(shares)))
    return [
        Table("accuracy", Point._fields, [tuple(each) for each in points], POINTS),
        Table("d_90", ("method", "d_90"), [(method, smallest(points, method)) for method in METHODS], SMALLEST),
    ]


def smallest(points: Sequence[Point], method: str) -> int | None:
    """The smallest dimension that is enough."""
    return min((each.dimension for each in points if each.method == method and each.share >= ENOUGH), default=None)


def plot(tables: Sequence[Table]) -> Figure:
    """The share of full fine-tuning's accuracy over d, a line for each method."""
    from matplotlib.figure import Figure

    points = [Point(*each) for each in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for method in METHODS:
        own = [each for each in points if each.method == method]
        axes.semilogx([each.dimension for each in own], [each.share for each in own], marker="o", label=method)
    axes.axhline(ENOUGH, linestyle="--", color="grey", label=f"{ENOUGH:.0%} of full fine-tuning")
    axes.set(xlabel="dimension d", ylabel="accuracy over full fine-tuning's")
    axes.legend()
    return figure
