"""Measures how many dimensions fine-tuning needs: accuracy over d, with and without scales of layers, and d_90 of both.

Aghajanyan et al. (arXiv 2012.13255), section 3 and figure 1: d_90 is the smallest d whose subspace gives 90 % of full
fine-tuning's accuracy. ``accuracy`` has every d, and d = 0, the model as it was before; ``d_90`` the smallest of them
that is enough for each method. Where d = 0 is enough, the second task asks for nothing new, and d_90 tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from suite.record.job import canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = (10, 30, 100, 300, 1000, 3000)
ENOUGH = 0.9
METHODS = {"SAID": "true", "DID": "false"}
BEFORE = "before"
POINTS = (
    "Means over the seeds; share: of full fine-tuning's accuracy after as many steps; before: of the model as it was, "
    "on validation data"
)
SMALLEST = (
    f"The smallest d with {ENOUGH:.0%} of full fine-tuning's accuracy; none where it is more than the largest, 0 where "
    "the model has as much before"
)


class Point(NamedTuple):
    """Records one method at one dimension."""

    method: str
    dimension: int
    seeds: int
    loss: float
    accuracy: float
    share: float


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``accuracy`` and ``d_90``."""
    stacks = {
        (method, dimension): canonical(f"intrinsic_dim:dimension={dimension},structure_aware={aware}")
        for method, aware in METHODS.items()
        for dimension in DIMENSIONS
    }
    runs = lab.runs(list(stacks.values()))
    points = before([full for pairs in runs.values() for full, _ in pairs])
    for (method, dimension), stack in stacks.items():
        ends = [(full.final, own.final) for full, own in runs[stack] if full.final and own.final]
        if ends:
            shares = [own.metrics["accuracy"] / full.metrics["accuracy"] for full, own in ends]
            losses, accuracies = zip(*((own.loss, own.metrics["accuracy"]) for _, own in ends), strict=True)
            points.append(Point(method, dimension, len(ends), fmean(losses), fmean(accuracies), fmean(shares)))
    return [
        StudyTable("accuracy", Point._fields, [tuple(point) for point in points], POINTS),
        StudyTable("d_90", ("method", "d_90"), [(method, smallest(points, method)) for method in METHODS], SMALLEST),
    ]


def before(runs: Sequence[Learned]) -> list[Point]:
    """Returns what full fine-tuning's curves begin with, over what they end with; nothing where none has come to its
    end."""
    curves = list({run.seed: run.curve for run in runs if run.final}.values())
    if not curves:
        return []
    loss, accuracy, last = (
        fmean(values)
        for values in zip(
            *((own[0].loss, own[0].metrics["accuracy"], own[-1].metrics["accuracy"]) for own in curves), strict=True
        )
    )
    return [Point(BEFORE, 0, len(curves), loss, accuracy, accuracy / last)]


def smallest(points: Sequence[Point], method: str) -> int | None:
    """Finds the smallest dimension that is enough."""
    enough = [point.dimension for point in points if point.method in (method, BEFORE) and point.share >= ENOUGH]
    return min(enough, default=None)


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the share of full fine-tuning's accuracy over d, a line for each method."""
    from matplotlib.figure import Figure

    points = [Point(*record) for record in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for method in METHODS:
        own = [point for point in points if point.method == method]
        axes.semilogx([point.dimension for point in own], [point.share for point in own], marker="o", label=method)
    for point in points:
        if point.method == BEFORE:
            axes.axhline(point.share, linestyle=":", color="grey", label="before fine-tuning")
    axes.axhline(ENOUGH, linestyle="--", color="grey", label=f"{ENOUGH:.0%} of full fine-tuning")
    axes.set(xlabel="dimension d", ylabel="accuracy over full fine-tuning's")
    axes.legend()
    return figure
