"""Has the theory's own bench: linear regression with l_p loss, by gradient descent on one matrix and on products.

``rule``: one step of gradient descent on balanced factors against theorem 1, at ever smaller rates; the relative error
goes with the rate. ``acceleration``: iterations until the loss is GOAL of the first above its minimum, each depth at
its own best rate of one grid, for p = 2, 4 and 6. ``curves``: that excess loss for p = 4, at these rates.

The data are scikit-learn's diabetes set (442 patients, ten standardised measurements, what became of them a year
later), in the place of the paper's gas sensors. Everything is float64, and no baseline takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suite.loop.data import generator
from suite.topics.studies.lab import Lab, StudyTable
from techniques.overparameterization.arora_depth.technique import balanced_factors, product

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (1, 2, 3)
POWERS = (2, 4, 6)
GOAL = 1e-4
MOST_STEPS = 20_000
RATES = tuple(2.0 ** (i / 2) for i in range(-28, 9))
START = 0.1  # the norm of the first weights; near zero, as the theory wants it
RULE_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
SHOWN = 60  # rows of ``curves``


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``rule``, ``acceleration`` and ``curves``; nothing is recorded."""
    lab.progress(0.0, "descending on l_p regression")
    problem = {power: diabetes(power) for power in POWERS}
    runs = {(power, depth): best_rate(problem[power], depth) for power in POWERS for depth in DEPTHS}
    return [rule(), acceleration(runs), curves({depth: runs[4, depth] for depth in DEPTHS}, problem[4])]


# the rule -----------------------------------------------------------------------------------------------------------


def end_to_end(weight: Tensor, gradient: Tensor, depth: int) -> Tensor:
    """Computes the direction of theorem 1, for ``weight`` and ``gradient`` [n, m]."""
    u, values, v = torch.linalg.svd(weight, full_matrices=False)
    terms = [
        _power(u, values, j / depth) @ gradient @ _power(v.T, values, (depth - 1 - j) / depth) for j in range(depth)
    ]
    return torch.stack(terms).sum(0)


def _power(vectors: Tensor, values: Tensor, exponent: float) -> Tensor:
    """Computes (V diag(values)^2 V^T)^exponent for ``vectors`` [n, k]; the identity at 0."""
    if not exponent:
        return torch.eye(len(vectors)).to(vectors)
    return (vectors * values ** (2 * exponent)) @ vectors.T


def rule(depths: Sequence[int] = DEPTHS[1:], rates: Sequence[float] = RULE_RATES) -> StudyTable:
    """Measures ||step - rate * direction|| / ||rate * direction|| of a random 8 x 6 least-squares problem."""
    random = generator(0)
    inputs, targets, weight = (
        torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((6, 40), (8, 40), (8, 6))
    )
    weight = weight / weight.norm()
    gradient = (weight @ inputs - targets) @ inputs.T / inputs.shape[1]
    rows = []
    for depth in depths:
        factors, direction = balanced_factors(weight, depth), end_to_end(weight, gradient, depth)
        for rate in rates:
            step = (weight - product(descended(factors, gradient, rate))) / rate
            rows.append((depth, rate, ((step - direction).norm() / direction.norm()).item()))
    note = "one step on the factors against theorem 1; the error of a first-order rule goes with the rate"
    return StudyTable("rule", ("depth", "rate", "relative_error"), rows, note)


def descended(factors: Sequence[Tensor], gradient: Tensor, rate: float) -> list[Tensor]:
    """Takes one step of gradient descent on the factors, ``gradient`` being that of their product."""
    eye = [torch.eye(factors[0].shape[0]).to(gradient), torch.eye(factors[-1].shape[1]).to(gradient)]
    lefts = [product([eye[0], *factors[:j]]) for j in range(len(factors))]
    rights = [product([*factors[j + 1 :], eye[1]]) for j in range(len(factors))]
    return [
        factor - rate * left.T @ gradient @ right.T for factor, left, right in zip(factors, lefts, rights, strict=True)
    ]


# acceleration -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regression:
    """Holds mean |x w - y|^p / p over ``features`` float64 [examples, d] and ``targets`` [examples], and its
    minimum."""

    features: Tensor
    targets: Tensor
    power: int
    least: float = 0.0

    def value(self, weights: Tensor) -> Tensor:
        """Computes the value of several weights [k, d]: losses [k]."""
        return (weights @ self.features.T - self.targets).abs().pow(self.power).mean(-1) / self.power

    def gradient(self, weights: Tensor) -> Tensor:
        residual = weights @ self.features.T - self.targets
        return residual.sign() * residual.abs().pow(self.power - 1) @ self.features / len(self.targets)


@dataclass(frozen=True)
class Descent:
    """Holds the first of the rates with the fewest steps to the goal; both None where no rate reaches it."""

    rate: float | None
    steps: int | None


def diabetes(power: int) -> Regression:
    """Loads features and targets with mean 0 and variance 1; the minimum by Newton's steps with a line search
    (scipy)."""
    import numpy
    from scipy.optimize import minimize
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    features, targets = torch.from_numpy(data.data), torch.from_numpy(data.target)
    features, targets = ((tensor - tensor.mean(0)) / tensor.std(0) for tensor in (features, targets))
    problem = Regression(features, targets, power)

    def both(flat: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        weights = torch.from_numpy(flat)[None]
        return problem.value(weights).item(), problem.gradient(weights)[0].numpy()

    start = numpy.zeros(features.shape[1])
    solution = minimize(both, start, jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 10_000})
    return Regression(features, targets, power, least=float(solution.fun))


def descents(problem: Regression, depth: int, rates: Sequence[float]) -> Iterator[Tensor]:
    """Yields the weights [rates, d] of gradient descent on a vector times depth - 1 scalars, at every rate at once.

    Balanced: vector and scalars begin with one norm, and their product with norm START, the same for every depth.
    """
    width = problem.features.shape[1]
    direction = torch.randn(width, generator=generator(1), dtype=torch.float64)
    size = START ** (1 / depth)
    vectors = (size * direction / direction.norm()).repeat(len(rates), 1)
    scalars = torch.full((len(rates), depth - 1), size, dtype=torch.float64)
    by = torch.tensor(rates, dtype=torch.float64)[:, None]
    while True:
        weights = vectors * scalars.prod(1, keepdim=True)
        yield weights
        gradient = problem.gradient(weights)
        whole = scalars.prod(1, keepdim=True)
        along = (vectors * gradient).sum(1, keepdim=True)
        # the scalars stay positive at every rate that descends; beyond, the quotient is as good as not a number
        vectors, scalars = vectors - by * whole * gradient, scalars - by * along * whole / scalars


def best_rate(problem: Regression, depth: int, rates: Sequence[float] = RATES, most: int = MOST_STEPS) -> Descent:
    """Finds the rate of the grid that is first at the goal."""
    first = None
    for step, weights in enumerate(islice(descents(problem, depth, rates), most + 1)):
        excess = problem.value(weights) - problem.least
        first = excess if first is None else first
        if (reached := (excess <= GOAL * first).nonzero()).numel():
            return Descent(rates[int(reached[0])], step)
    return Descent(None, None)


def acceleration(runs: dict[tuple[int, int], Descent]) -> StudyTable:
    """Steps of each depth at its best rate, and those of depth 1 over them."""
    rows = []
    for (power, depth), run in runs.items():
        single = runs[power, 1].steps
        rows.append((power, depth, run.rate, run.steps, single / run.steps if single and run.steps else None))
    columns = ("p", "depth", "best_rate", "steps", "speedup")
    note = f"steps of gradient descent until the excess loss is {GOAL:g} of the first; of {len(RATES)} rates the best"
    return StudyTable("acceleration", columns, rows, note)


def curves(runs: dict[int, Descent], problem: Regression) -> StudyTable:
    """Returns the excess loss over the first, by step, at each depth's best rate; None once the goal is reached."""
    excesses: dict[int, list[float]] = {}
    for depth, run in runs.items():
        if run.rate is not None and run.steps is not None:
            points = islice(descents(problem, depth, [run.rate]), run.steps + 1)
            excesses[depth] = [(problem.value(weights) - problem.least).item() for weights in points]
    longest = max(map(len, excesses.values()), default=0)
    rows = [
        (step, *(own[step] / own[0] if step < len(own) else None for own in excesses.values()))
        for step in range(0, longest, max(1, longest // SHOWN))
    ]
    return StudyTable("curves", ("step", *(f"depth_{depth}" for depth in excesses)), rows, "p = 4; excess loss")


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the curves, the excess loss logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    table = next(table for table in tables if table.name == "curves")
    for column, name in enumerate(table.columns[1:], 1):
        points = [(row[0], row[column]) for row in table.rows if row[column] is not None]
        axes.semilogy(*zip(*points, strict=True), label=name.replace("_", " "))
    axes.set(xlabel="steps of gradient descent", ylabel="excess l_4 loss over the first")
    axes.legend()
    return figure
