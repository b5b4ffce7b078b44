"""Fits the parametric scaling law of a language model's loss, and has its compute-optimal split.

Hoffmann et al., "Training Compute-Optimal Large Language Models" (NeurIPS 2022, arXiv 2203.15556), section 3.3, for N
parameters (without embeddings) and D tokens at C = 6 N D floating-point operations:

    L(N, D) = E + A / N^alpha + B / D^beta
    N*(C) = G (C / 6)^(beta / (alpha + beta))        G = (alpha A / (beta B))^(1 / (alpha + beta))
    D*(C) = C / 6 / N*

Fitted by minimising the Huber loss of log L, in which L is a log-sum-exp of the three terms, by L-BFGS from a grid of
starts. The IsoFLOP method (section 3.2) needs no law: at each C a parabola of L in log N has its minimum at N*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

Values = NDArray[np.float64]
Numbers = Sequence[float] | Values

HUBER = 1e-3  # in units of log L, the paper's
STARTS = 12  # the best of the grid, from which L-BFGS runs
GRID = {  # the paper's, of log A, log B, log E, alpha, beta
    "log_a": (0.0, 5.0, 10.0, 15.0, 20.0, 25.0),
    "log_b": (0.0, 5.0, 10.0, 15.0, 20.0, 25.0),
    "log_e": (-1.0, -0.5, 0.0, 0.5, 1.0),
    "alpha": (0.0, 0.5, 1.0, 1.5, 2.0),
    "beta": (0.0, 0.5, 1.0, 1.5, 2.0),
}


class Law(NamedTuple):
    """Holds the constants; loss in nats a token."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    @property
    def size_exponent(self) -> float:
        """Returns the exponent a with which N* grows as C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def token_exponent(self) -> float:
        """Returns the exponent b with which D* grows as C^b."""
        return self.alpha / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Returns (N*, D*) at C = ``flops``."""
        g = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = g * (flops / 6) ** self.size_exponent
        return parameters, flops / 6 / parameters


PUBLISHED = Law(e=1.69, a=406.4, b=410.7, alpha=0.34, beta=0.28)
GOPHER_FLOPS = 5.76e23


def fit(parameters: Numbers, tokens: Numbers, losses: Numbers, start: Law | None = None) -> Law:
    """Fits the law to the runs. ``start`` replaces the grid of starts.

    Raises ValueError for fewer runs than constants, or runs that do not differ in size or in tokens.
    """
    n, d, target = (np.log(np.asarray(values, dtype=np.float64)) for values in (parameters, tokens, losses))
    if len(n) < len(Law._fields) or np.ptp(n) == 0 or np.ptp(d) == 0:
        raise ValueError(f"{len(n)} runs do not determine five constants: give more, of several sizes and lengths")
    centre_n, centre_d = n.mean(), d.mean()  # log A and alpha are nearly collinear unless log N is centred

    def objective(x: Values) -> tuple[float, Values]:
        return _huber(x, n - centre_n, d - centre_d, target)

    if start is None:
        grid = np.array(list(product(*GRID.values())))
        grid[:, 0] -= grid[:, 3] * centre_n
        grid[:, 1] -= grid[:, 4] * centre_d
        starts = grid[np.argsort(_huber_of_grid(grid, n - centre_n, d - centre_d, target), kind="stable")[:STARTS]]
    else:
        log_a, log_b = np.log(start.a) - start.alpha * centre_n, np.log(start.b) - start.beta * centre_d
        starts = np.array([[log_a, log_b, np.log(start.e), start.alpha, start.beta]])
    options = {"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9}
    solutions = [minimize(objective, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    log_a, log_b, log_e, alpha, beta = min(solutions, key=lambda solution: solution.fun).x
    with np.errstate(over="ignore"):
        a, b = np.exp(log_a + alpha * centre_n), np.exp(log_b + beta * centre_d)
    return Law(float(np.exp(log_e)), float(a), float(b), float(alpha), float(beta))


def _terms(x: Values, n: Values, d: Values) -> Values:
    """Computes, as [..., 3, runs]: logarithms of the three terms of L; ``x`` is [..., 5], in the order of GRID."""
    x = x[..., None]
    size, data, irreducible = x[..., 0, :] - x[..., 3, :] * n, x[..., 1, :] - x[..., 4, :] * d, x[..., 2, :] + 0 * n
    return np.stack([size, data, irreducible], axis=-2)


def _huber_of_grid(grid: Values, n: Values, d: Values, target: Values) -> Values:
    residual = np.abs(logsumexp(_terms(grid, n, d), axis=-2) - target) / HUBER
    return np.where(residual <= 1, residual**2 / 2, residual - 0.5).sum(-1)


def _huber(x: Values, n: Values, d: Values, target: Values) -> tuple[float, Values]:
    """Computes the sum of Huber losses in units of HUBER squared (L-BFGS stops at absolute values near 1), and its
    gradient."""
    terms = _terms(x, n, d)
    residual = (logsumexp(terms, axis=0) - target) / HUBER
    size, data, irreducible = softmax(terms, axis=0) * np.clip(residual, -1, 1) / HUBER
    gradient = [size.sum(), data.sum(), irreducible.sum(), -(size * n).sum(), -(data * d).sum()]
    value = np.where(np.abs(residual) <= 1, residual**2 / 2, np.abs(residual) - 0.5).sum()
    return float(value), np.array(gradient)


def bootstrap(
    parameters: Sequence[float], tokens: Sequence[float], losses: Sequence[float], draws: int = 100, seed: int = 0
) -> list[Law]:
    """Returns the laws of ``draws`` resamplings of the runs, each started at the law of all; too uniform ones are left
    out."""
    runs = np.column_stack([parameters, tokens, losses])
    centre, generator = fit(parameters, tokens, losses), np.random.default_rng(seed)
    laws: list[Law] = []
    for _ in range(draws):
        drawn = runs[generator.integers(0, len(runs), len(runs))]
        if np.ptp(drawn[:, 0]) and np.ptp(drawn[:, 1]):
            laws.append(fit(drawn[:, 0], drawn[:, 1], drawn[:, 2], start=centre))
    return laws


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Returns the percentile interval."""
    low, high = np.quantile(np.asarray(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Parabola(NamedTuple):
    """Describes loss over log N at one budget: its curvature, and the minimum, None where the curvature is not
    positive."""

    curvature: float
    slope: float
    offset: float

    @property
    def optimum(self) -> float | None:
        """Returns N*."""
        with np.errstate(over="ignore"):  # infinitely far where it is nearly a line
            return float(np.exp(-self.slope / (2 * self.curvature))) if self.curvature > 0 else None

    def at(self, parameters: float) -> float:
        x = np.log(parameters)
        return float(self.curvature * x**2 + self.slope * x + self.offset)


def isoflop(parameters: Sequence[float], losses: Sequence[float]) -> Parabola | None:
    """Fits the parabola through runs of one budget; None for fewer than three sizes."""
    x = np.log(np.asarray(parameters, dtype=np.float64))
    if len(set(parameters)) < 3:
        return None
    centre = x.mean()
    c2, c1, c0 = np.polyfit(x - centre, np.asarray(losses, dtype=np.float64), 2)
    return Parabola(float(c2), float(c1 - 2 * c2 * centre), float(c0 - c1 * centre + c2 * centre**2))


def growth(budgets: Mapping[float, Sequence[tuple[float, float]]]) -> float | None:
    """Fits the exponent of N* in C: the slope of log N* over log C. ``budgets`` has each one's runs, (N, loss).

    Only budgets whose parabola has its minimum between the sizes run count; None for fewer than two.
    """
    optima = {}
    for flops, runs in budgets.items():
        sizes, losses = zip(*runs, strict=True)
        parabola = isoflop(sizes, losses)
        if parabola and parabola.optimum and min(sizes) <= parabola.optimum <= max(sizes):
            optima[flops] = parabola.optimum
    if len(optima) < 2:
        return None
    return float(np.polyfit(np.log(list(optima)), np.log(list(optima.values())), 1)[0])


def growth_bootstrap(
    budgets: Mapping[float, Sequence[tuple[float, float]]], draws: int = 200, seed: int = 0
) -> list[float]:
    """Computes :func:`growth` of ``draws`` resamplings of each budget's runs; those with fewer than two minima are left
    out."""
    generator = np.random.default_rng(seed)
    drawn = [
        growth(
            {flops: [runs[i] for i in generator.integers(0, len(runs), len(runs))] for flops, runs in budgets.items()}
        )
        for _ in range(draws)
    ]
    return [exponent for exponent in drawn if exponent is not None]
