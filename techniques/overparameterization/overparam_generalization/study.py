"""Studies learning a small smooth network from few examples with ever wider ones, and what their random start holds
already.

Teacher: y = sum of a_k sin(w_k x) over 4 smooth neurons, 15 inputs of unit norm. Student: f(x) = a^T relu(B relu(A x))
with A and B of width m, N(0, 2 / m), trained by stochastic gradient descent, and a = +-1 fixed; 400 examples at every
width, so that the widest has hundreds of times as many weights. ``risk``: squared errors over the variance of the
targets, where the error on held-out examples was least and at the end, and how far the weights are from their start.
``subnetworks``: the error of the best 16 neurons of relu(A x) at its random start that a greedy search keeps, with
output weights by least squares, beside that of 16 drawn by chance: the link to lottery tickets. Means over the seeds.

No baseline takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from suite.loop.data import generator
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (16, 64, 256, 512)
EXAMPLES, HELD_OUT, DIMENSIONS, TEACHERS = 400, 1000, 15, 4
FREQUENCY = 3.0
STEPS, BATCH, LOOK_EVERY = 1500, 40, 50
RATE = 0.6  # over the width, as the gradient grows with it
KEPT, CHANCES = 16, 20
FEATURES = (16, 64, 256, 1024, 4096)


def study(lab: Lab) -> list[StudyTable]:
    """Makes the tables ``risk`` and ``subnetworks``; nothing is recorded."""
    runs: dict[int, list[Trained]] = {}
    for done, width in enumerate(WIDTHS):
        lab.progress(done / (len(WIDTHS) + 1), f"training {width} neurons a layer")
        runs[width] = [train(problem(seed), width, seed) for seed in range(lab.seeds)]
    lab.progress(len(WIDTHS) / (len(WIDTHS) + 1), "searching subnetworks")
    return [risks(runs), subnetworks(range(lab.seeds))]


@dataclass(frozen=True)
class Problem:
    """Holds ``inputs`` float32 [examples, d] of unit norm and ``targets`` [examples] of variance 1; the first EXAMPLES
    train, half of the others stops the training and half is the test."""

    inputs: Tensor
    targets: Tensor

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        half = EXAMPLES + HELD_OUT // 2
        chosen = {"train": slice(EXAMPLES), "validation": slice(EXAMPLES, half), "test": slice(half, None)}[name]
        return self.inputs[chosen], self.targets[chosen]


class Trained(NamedTuple):
    """Holds relative squared errors at the best step on validation examples, the test's at the end, and distances at
    the best."""

    steps: int
    train: float
    test: float
    test_at_the_end: float
    distance_of_a: float
    distance_of_b: float


def problem(seed: int) -> Problem:
    random = generator(seed, 0)
    inputs = torch.randn(EXAMPLES + HELD_OUT, DIMENSIONS, generator=random)
    inputs = inputs / inputs.norm(dim=1, keepdim=True)
    directions = torch.randn(TEACHERS, DIMENSIONS, generator=random)
    directions = FREQUENCY * directions / directions.norm(dim=1, keepdim=True)
    targets = (inputs @ directions.T).sin() @ torch.randn(TEACHERS, generator=random)
    return Problem(inputs, (targets - targets.mean()) / targets.std())


def train(on: Problem, width: int, seed: int, steps: int = STEPS) -> Trained:
    """Trains A and B by stochastic gradient descent."""
    random = generator(seed, 1)
    start = [torch.randn(width, size, generator=random) * (2 / width) ** 0.5 for size in (DIMENSIONS, width)]
    signs = torch.randint(2, (width,), generator=random).float() * 2 - 1
    weights = [tensor.clone() for tensor in start]
    inputs, targets = on.part("train")

    def errors() -> dict[str, float]:
        parts = {name: on.part(name) for name in ("train", "validation", "test")}
        return {name: (output(weights, signs, x) - y).square().mean().item() for name, (x, y) in parts.items()}

    seen = [(0, errors(), [0.0, 0.0])]
    for step, chosen in enumerate(batches(len(inputs), steps, random), 1):
        for weight, gradient in zip(weights, gradients(weights, signs, inputs[chosen], targets[chosen]), strict=True):
            weight -= RATE / width * gradient
        if step % LOOK_EVERY == 0:
            apart = [((now - then).norm() / then.norm()).item() for now, then in zip(weights, start, strict=True)]
            seen.append((step, errors(), apart))
    best, at_best, apart = min(seen, key=lambda call: call[1]["validation"])
    return Trained(best, at_best["train"], at_best["test"], seen[-1][1]["test"], *apart)


def output(weights: Sequence[Tensor], signs: Tensor, inputs: Tensor) -> Tensor:
    return (((inputs @ weights[0].T).relu() @ weights[1].T).relu()) @ signs


def gradients(weights: Sequence[Tensor], signs: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the gradients of the mean of (f - y)^2 / 2, by the chain rule."""
    first = inputs @ weights[0].T
    hidden = first.relu()
    second = hidden @ weights[1].T
    residual = (second.relu() @ signs - targets) / len(targets)
    of_second = residual[:, None] * signs * (second > 0)
    of_first = (of_second @ weights[1]) * (first > 0)
    return of_first.T @ inputs, of_second.T @ hidden


def batches(examples: int, steps: int, random: torch.Generator) -> Iterator[Tensor]:
    """Yields int64 [BATCH] indices, in a new order each epoch."""
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(examples, generator=random)
        yield order[:BATCH]
        order = order[BATCH:]


def risks(runs: Mapping[int, Sequence[Trained]]) -> StudyTable:
    """Computes means over the seeds, by width."""
    rows = []
    for width, seeds in runs.items():
        means = [fmean(getattr(seed, name) for seed in seeds) for name in Trained._fields]
        rows.append((width, width * (width + DIMENSIONS), *means))
    columns = ("width", "weights", *Trained._fields)
    note = f"{EXAMPLES} examples; errors over the targets' variance; distances over the start's norm"
    return StudyTable("risk", columns, rows, note)


# subnetworks --------------------------------------------------------------------------------------------------------


def greedy(features: Tensor, targets: Tensor, count: int) -> list[int]:
    """Chooses ``count`` columns of ``features`` [examples, m], each the one that explains most of what is left
    (orthogonal matching pursuit)."""
    scaled = features / features.norm(dim=0).clamp(min=torch.finfo(features.dtype).tiny)
    chosen: list[int] = []
    left = targets
    while len(chosen) < min(count, features.shape[1]):
        gains = (scaled.T @ left).abs()
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        left = targets - features[:, chosen] @ solved(features[:, chosen], targets)
    return chosen


def solved(features: Tensor, targets: Tensor) -> Tensor:
    """Solves least squares."""
    return torch.linalg.lstsq(features, targets[:, None], driver="gelsd").solution[:, 0]


def subnetworks(seeds: Sequence[int]) -> StudyTable:
    """Computes errors on the test examples of KEPT neurons at the start: searched for, and drawn (the best of
    CHANCES)."""
    rows = []
    for width in FEATURES:
        errors = [_subnetwork_errors(problem(seed), width, seed) for seed in seeds]
        rows.append((width, KEPT, *(fmean(error[i] for error in errors) for i in range(3))))
    columns = ("width", "kept", "searched_train", "searched_test", "best_by_chance_test")
    return StudyTable(
        "subnetworks", columns, rows, f"neurons of a random layer; the best of {CHANCES} draws on the training"
    )


def _subnetwork_errors(on: Problem, width: int, seed: int) -> tuple[float, float, float]:
    random = generator(seed, 2)
    directions = torch.randn(width, DIMENSIONS, generator=random, dtype=torch.float64)
    (x, y), (test_x, test_y) = ([tensor.double() for tensor in on.part(name)] for name in ("train", "test"))
    features, test_features = (x @ directions.T).relu(), (test_x @ directions.T).relu()

    def errors(chosen: Sequence[int]) -> tuple[float, float]:
        weights = solved(features[:, chosen], y)
        pairs = ((features, y), (test_features, test_y))
        train_error, test_error = ((own[:, chosen] @ weights - t).square().mean().item() for own, t in pairs)
        return train_error, test_error

    draws = [torch.randperm(width, generator=random)[:KEPT].tolist() for _ in range(CHANCES)]
    return *errors(greedy(features, y, KEPT)), min(map(errors, draws))[1]


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws on the left the errors and distances of trained networks, on the right those of subnetworks at the start,
    over the width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, table, columns in (
        (left, tables[0], ("train", "test", "test_at_the_end", "distance_of_a", "distance_of_b")),
        (right, tables[1], ("searched_train", "searched_test", "best_by_chance_test")),
    ):
        widths = [row[0] for row in table.rows]
        for name in columns:
            values = [row[table.columns.index(name)] for row in table.rows]
            style = "--" if name.startswith("distance") else "o-"
            axes.loglog(widths, values, style, label=name.replace("_", " "))
        axes.set(xlabel="neurons", ylabel="squared error over the targets' variance")
        axes.legend(fontsize="small")
    return figure
