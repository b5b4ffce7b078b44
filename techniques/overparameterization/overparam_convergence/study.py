"""Has the theory's own setting at widths that one can run: random labels, two layers, full-batch gradient descent.

f(x) = a^T relu(W x) with W ~ N(0, 1) trained and a = +-1 / sqrt(m) fixed; 64 inputs of unit norm in 20 dimensions, no
two the same; the loss is the mean of (f - y)^2 / 2, and the rate one over the largest eigenvalue of the limiting
kernel, at every width. ``width``: what happens until the loss is GOAL. ``slopes``: the powers of m by which weights and
activations move, which the theory puts at -1/2. ``duplicates``: the loss that stays where inputs come twice with
opposite labels, which the theory excludes. ``curves``: the loss, for the plot. Means over the seeds.

No baseline takes part. The bounds themselves (widths polynomial in the examples, of high degree) cannot be tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from suite.loop.data import generator
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (64, 256, 1024, 4096)
EXAMPLES, DIMENSIONS = 64, 20
GOAL = 1e-3
MOST_STEPS = 4000
PAIRS = (1, 4, 16)
DUPLICATED_WIDTH, DUPLICATED_STEPS = 1024, 1000
SHOWN = 40  # rows of ``curves``
FITTED_FROM = 10  # the first steps leave the directions of the largest eigenvalues


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``width``, ``slopes``, ``duplicates`` and ``curves``; nothing is recorded."""
    runs: dict[int, list[Training]] = {}
    for done, width in enumerate(WIDTHS):
        lab.progress(done / (len(WIDTHS) + 1), f"training {width} neurons")
        runs[width] = [train(problem(seed), width, seed) for seed in range(lab.seeds)]
    lab.progress(len(WIDTHS) / (len(WIDTHS) + 1), "training on duplicates")
    return [of_width(runs), slopes(runs), duplicates(range(lab.seeds)), curves(runs)]


@dataclass(frozen=True)
class Problem:
    """Holds ``inputs`` float64 [examples, d] of unit norm, ``labels`` [examples] of +-1."""

    inputs: Tensor
    labels: Tensor

    @property
    def rate(self) -> float:
        """Returns one over the largest eigenvalue of the limiting kernel, x.x' (pi - angle) / 2 pi over the
        examples."""
        products = (self.inputs @ self.inputs.T).clamp(-1, 1)
        kernel = products * (math.pi - products.acos()) / (2 * math.pi)
        return len(self.labels) / torch.linalg.eigvalsh(kernel)[-1].item()


class Training(NamedTuple):
    """Records the losses before every step; then distances and the share of activations that flipped, at the end."""

    losses: list[float]
    relative_distance: float
    flipped: float


def problem(seed: int, pairs: int = 0) -> Problem:
    """Draws random inputs and labels; the first ``pairs`` of inputs come twice, with opposite labels."""
    random = generator(seed, 0)
    inputs = torch.randn(EXAMPLES, DIMENSIONS, generator=random, dtype=torch.float64)
    labels = torch.randint(2, (EXAMPLES,), generator=random).double() * 2 - 1
    inputs[pairs : 2 * pairs], labels[pairs : 2 * pairs] = inputs[:pairs], -labels[:pairs]
    return Problem(inputs / inputs.norm(dim=1, keepdim=True), labels)


def train(on: Problem, width: int, seed: int, most: int = MOST_STEPS) -> Training:
    """Runs gradient descent on W until the loss is at most GOAL, or for ``most`` steps."""
    random = generator(seed, 1)
    start = torch.randn(width, DIMENSIONS, generator=random, dtype=torch.float64)
    signs = (torch.randint(2, (width,), generator=random).double() * 2 - 1) / math.sqrt(width)
    weights, rate, losses = start.clone(), on.rate, []
    while True:
        before = on.inputs @ weights.T
        residual = before.relu() @ signs - on.labels
        losses.append(residual.square().mean().item() / 2)
        if losses[-1] <= GOAL or len(losses) > most:
            break
        weights -= rate / len(residual) * ((residual[:, None] * (before > 0)) * signs).T @ on.inputs
    moved = (weights - start).norm() / start.norm()
    flipped = ((before > 0) != (on.inputs @ start.T > 0)).double().mean()
    return Training(losses, moved.item(), flipped.item())


# tables -------------------------------------------------------------------------------------------------------------


def of_width(runs: Mapping[int, Sequence[Training]]) -> StudyTable:
    """Returns, by width: seeds that reached GOAL, after how many steps, how far from the start, and how straight log L
    is."""
    rows = []
    for width, seeds in runs.items():
        there = [seed for seed in seeds if seed.losses[-1] <= GOAL]
        steps = fmean(len(seed.losses) - 1 for seed in there) if there else None
        distance, flips = (fmean(getattr(seed, name) for seed in seeds) for name in Training._fields[1:])
        rows.append((width, len(there), steps, distance, flips, fmean(straight(seed.losses) for seed in seeds)))
    columns = ("width", "seeds_at_goal", "steps", "relative_distance", "flipped_activations", "r_squared_of_log_loss")
    return StudyTable("width", columns, rows, f"until the loss is {GOAL:g}; random labels, no two inputs the same")


def straight(losses: Sequence[float]) -> float:
    """Computes R^2 of a line through the logarithm of the loss over the steps: 1 where it falls by the same factor each
    step."""
    values = torch.tensor(losses[FITTED_FROM:], dtype=torch.float64).log()
    steps = torch.arange(len(values), dtype=torch.float64)
    return float(torch.corrcoef(torch.stack([steps, values]))[0, 1] ** 2)


def slopes(runs: Mapping[int, Sequence[Training]]) -> StudyTable:
    """Fits the powers of the width by which what moves goes, by least squares in logarithms."""
    widths = torch.tensor([float(width) for width in runs], dtype=torch.float64).log()
    rows = []
    for name in Training._fields[1:]:
        means = torch.tensor([fmean(getattr(seed, name) for seed in seeds) for seeds in runs.values()]).log().double()
        centred = widths - widths.mean()
        rows.append((name, -0.5, float((centred * means).sum() / centred.square().sum())))
    return StudyTable("slopes", ("quantity", "predicted", "measured"), rows, "powers of the width")


def duplicates(seeds: Sequence[int]) -> StudyTable:
    """Returns the loss that is left with ``pairs`` of equal inputs and opposite labels, and the least of any
    function."""
    rows = []
    for pairs in PAIRS:
        losses = [train(problem(seed, pairs), DUPLICATED_WIDTH, seed, DUPLICATED_STEPS).losses[-1] for seed in seeds]
        rows.append((pairs, pairs / EXAMPLES, fmean(losses)))
    note = f"{DUPLICATED_WIDTH} neurons, {DUPLICATED_STEPS} steps; the best answer to both of a pair is 0"
    return StudyTable("duplicates", ("pairs", "least_loss", "loss"), rows, note)


def curves(runs: Mapping[int, Sequence[Training]]) -> StudyTable:
    """Returns the loss of the first seed, by step; None once GOAL is reached."""
    losses = {width: seeds[0].losses for width, seeds in runs.items()}
    longest = max(map(len, losses.values()))
    rows = [
        (step, *(own[step] if step < len(own) else None for own in losses.values()))
        for step in range(0, longest, max(1, longest // SHOWN))
    ]
    return StudyTable("curves", ("step", *(f"{width}_neurons" for width in losses)), rows, "training loss, first seed")


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws left the loss over the steps; right how far weights and activations move, over the width, with the power
    -1/2."""
    from matplotlib.figure import Figure

    by_name = {table.name: table for table in tables}
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = by_name["curves"]
    for column, name in enumerate(table.columns[1:], 1):
        points = [(row[0], row[column]) for row in table.rows if row[column] is not None]
        left.semilogy(*zip(*points, strict=True), label=name.replace("_", " "))
    left.set(xlabel="steps of gradient descent", ylabel="training loss, random labels")
    widths = [row[0] for row in by_name["width"].rows]
    for column, label in ((3, "relative distance of weights"), (4, "flipped activations")):
        values = [row[column] for row in by_name["width"].rows]
        right.loglog(widths, values, "o-", label=label)
        right.loglog(widths, [values[0] * (width / widths[0]) ** -0.5 for width in widths], "--", color="grey")
    right.set(xlabel="neurons", ylabel="share")
    for axes in (left, right):
        axes.legend()
    return figure
