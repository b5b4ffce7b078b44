"""Compares widths at equal cost, stopped early, then pruned and quantised: loss over bytes.

The cost of a step is taken as the blocks' weights; each width trains for as many steps as the reference's cost allows,
to the end of its own schedule. ``sizes``: losses after these steps, and the share of the cost at which the training
loss first is what the reference's is in the end. ``bytes``: the test loss of each after one round of pruning by
magnitude and quantisation, without training, over the bytes of the blocks' matrices (weights that are not 0, times
their bits); ``best`` where none of as few bytes has a lower loss. Means over the seeds. Nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.model.anatomy import anatomy, weight_matrix
from suite.record.job import Job, canonical
from suite.topics.studies.lab import Lab, StudyTable
from techniques.overparameterization.train_large_compress.technique import largest, matrices, quantised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (1, 2, 4)
SPARSITIES = (0.0, 0.5, 0.75)
BITS = (32, 8, 4)
WINDOW = 20  # steps over which the training loss is averaged

Rows = list[tuple[float, ...]]


def study(lab: Lab) -> list[StudyTable]:
    """Makes the tables ``sizes`` and ``bytes``."""
    sizes: Rows = []
    points: Rows = []
    goals: list[float] = []
    for number, width in enumerate(WIDTHS):
        lab.progress(number / len(WIDTHS), f"training {width} times the neurons")
        runs = [trained(lab, width, seed) for seed in range(lab.seeds)]
        ends = [fmean(losses[-WINDOW:]) for _, losses in runs]
        goals = goals or ends
        there = [share_to(losses, goal) for (_, losses), goal in zip(runs, goals, strict=True)]
        steps = runs[0][0].recipe.steps
        test = fmean(run.evaluate("test")["loss"] for run, _ in runs)
        count = sum(matrix.numel() for matrix in matrices(runs[0][0].model).values())
        sizes.append((width, count, steps, fmean(ends), test, fmean(there)))
        for sparsity in SPARSITIES:
            for bits in BITS:
                results = [compressed(run, sparsity, bits) for run, _ in runs]
                points.append((width, sparsity, bits, results[0][0], fmean(loss for _, loss in results)))
    columns = ("width", "block_weights", "steps", "train_loss", "test_loss", "cost_to_the_references_loss")
    note = "equal cost; the last column in shares of it, above 1 where the loss was not reached"
    return [
        StudyTable("sizes", columns, sizes, note),
        StudyTable(
            "bytes", ("width", "sparsity", "bits", "bytes", "test_loss", "best"), front(points), "of the blocks"
        ),
    ]


def trained(lab: Lab, width: int, seed: int) -> tuple[Run, list[float]]:
    """Trains a run of the reference's cost with ``width`` times the neurons, and returns it and its training losses."""
    plain = run_of(Job(setting=lab.setting, seed=seed))
    stack = canonical(f"train_large_compress:width={width},stop={1 / relative_cost(plain, width)},sparsity=0,bits=32")
    run = run_of(Job(setting=lab.setting, stack=stack, seed=seed))
    return run, run.train(run.recipe.steps)


def relative_cost(plain: Run, width: int) -> float:
    """Computes the blocks' weights with ``width`` times the neurons, over the plain model's."""
    layers = [part for block in plain.anatomy.every_block for part in block.mlp_linears]
    of_mlps, of_all = (
        sum(weight_matrix(linear.module).numel() for linear in own) for own in (layers, plain.anatomy.linears)
    )
    return 1 + (width - 1) * of_mlps / of_all


def share_to(losses: Sequence[float], goal: float) -> float:
    """Returns the share of the steps after which the mean of WINDOW losses is first at most ``goal``; 2 where it never
    is."""
    means = (fmean(losses[max(0, end - WINDOW) : end]) for end in range(1, len(losses) + 1))
    return next((end / len(losses) for end, mean in enumerate(means, 1) if mean <= goal), 2.0)


@torch.no_grad()
def compressed(run: Run, sparsity: float, bits: int) -> tuple[float, float]:
    """Returns bytes of the blocks' matrices and the test loss after compression; the model stays as it was."""
    weights = matrices(run.model)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    for name, mask in largest(weights, sparsity).items():
        weights[name].mul_(mask)
    nonzeros = sum(int(weight.count_nonzero()) for weight in weights.values())
    for part in anatomy(run.model).linears if bits < 32 else ():
        matrix = weight_matrix(part.module)
        matrix.copy_(quantised(matrix, bits))
    loss = run.evaluate("test")["loss"]
    for name, value in before.items():
        weights[name].copy_(value)
    return nonzeros * bits / 8, loss


def front(points: Rows) -> list[tuple[object, ...]]:
    """Returns the points with whether none of at most as many bytes has a lower loss."""
    return [(*point, not any(other[3] <= point[3] and other[4] < point[4] for other in points)) for point in points]


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the test loss over the bytes, a colour for each width; the best of all are joined."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    rows = next(table for table in tables if table.name == "bytes").rows
    for number, width in enumerate(sorted({row[0] for row in rows})):
        own = [row for row in rows if row[0] == width]
        axes.semilogx([row[3] for row in own], [row[4] for row in own], "o", color=f"C{number}", label=f"width {width}")
    best = sorted((row[3], row[4]) for row in rows if row[5])
    axes.semilogx(*zip(*best, strict=True), "--", color="grey", label="best at these bytes")
    axes.set(xlabel="bytes of the blocks' matrices", ylabel="test loss")
    axes.legend()
    return figure
