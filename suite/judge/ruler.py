"""Computes the ruler: the reference's own scaling curve, on which a final loss is read as an equivalent budget.

The reference is trained at several budgets, each with its full, fully decayed schedule. Its final test loss against
the budget is monotone and smooth, close to a power law, so it is read in log-log: h(ln loss) = ln(budget / own budget).
Losses are averaged over seeds, made monotone (isotonic regression; Barlow et al. 1972) and interpolated by a monotone
cubic (Fritsch & Carlson 1980). A technique that ended at loss L is worth exp(h(ln L)) of the reference's budget; with
a mean beyond the ends, the answer is a bound.

A seed's own h(ln L) is taken relative to the reference of that seed, h(ln L) - h(ln L_ref): same initial weights and
batches, so that what a seed is lucky with cancels where trajectories are alike. The curve's own uncertainty enters by
the jackknife over its seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # whoever wants the curve alone waits neither for scipy nor for records
    from numpy.typing import ArrayLike
    from scipy.interpolate import PchipInterpolator

    from suite.judge.statistics import Floats
    from suite.record.schema import Learned

BUDGETS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
"""Of the reference's own steps."""

FEWEST = 3  # budgets of a curve that is one
LEAST_SLOPE = 1e-3  # of ln loss in ln budget: below, a curve is flat, and reads nothing


@dataclass(frozen=True, init=False)
class Ruler:
    """Holds final losses of the reference, [seeds, budgets], NaN where a seed was not trained at a budget.

    ``budgets`` [budgets], ascending, are in any unit that every run counts alike: steps, tokens, FLOPs; of the suite's
    own rulers they are over the reference's own steps. ``machine``: where it was learned.
    """

    budgets: tuple[float, ...]
    losses: Floats
    machine: str

    def __init__(self, budgets: ArrayLike, losses: ArrayLike, machine: str = "") -> None:
        """Takes budgets in any order, and losses [seeds, budgets], or [budgets] of one seed. Raises ValueError for
        fewer than three budgets, for what is not positive and finite, and where no seed was trained at a budget."""
        amounts = np.asarray(budgets, dtype=np.float64)
        table = np.atleast_2d(np.asarray(losses, dtype=np.float64))
        if amounts.ndim != 1 or table.ndim != 2 or table.shape[1] != len(amounts):
            raise ValueError(f"losses are [seeds, budgets]: {table.shape} does not go with budgets {amounts.shape}")
        if len(amounts) < FEWEST:
            raise ValueError(f"a scaling curve has {FEWEST} budgets or more, not {len(amounts)}; train at further ones")
        if not (np.isfinite(amounts).all() and (amounts > 0).all() and len(set(amounts.tolist())) == len(amounts)):
            raise ValueError(f"budgets are positive, finite and different, not {amounts.tolist()}")
        if not (np.isnan(table) | (np.isfinite(table) & (table > 0))).all():
            raise ValueError("losses are positive and finite, NaN where a seed has none; leave diverged runs out")
        if (empty := np.isnan(table).all(axis=0)).any():
            raise ValueError(f"no seed was trained at the budget {amounts[empty][0]:g}; leave that budget out")
        order = np.argsort(amounts)
        object.__setattr__(self, "budgets", tuple(amounts[order].tolist()))
        object.__setattr__(self, "losses", table[:, order])
        object.__setattr__(self, "machine", machine)

    @cached_property
    def log_budgets(self) -> Floats:
        logs: Floats = np.log(np.array(self.budgets))
        return logs

    @cached_property
    def log_losses(self) -> Floats:
        """Returns monotone means over seeds [budgets], falling."""
        from scipy.optimize import isotonic_regression

        means = _means(np.log(self.losses))
        falling: Floats = -np.asarray(isotonic_regression(-means).x)
        for at, step in enumerate(np.diff(self.log_budgets), 1):  # ties would have no inverse
            falling[at] = min(falling[at], falling[at - 1] - LEAST_SLOPE * step)
        return falling

    @property
    def ends(self) -> tuple[float, float]:
        """Returns the least and the largest of the budgets."""
        return self.budgets[0], self.budgets[-1]

    def budget(self, loss: float) -> float:
        """Returns the equivalent budget: with how much the reference would end at ``loss``. See :meth:`beyond` for what
        lies off the curve's ends."""
        return math.exp(self.log_budget(loss))

    def loss(self, budget: float) -> float:
        """Returns where the reference ends with a budget between the ends."""
        return math.exp(self.log_loss(math.log(budget)))

    def log_budget(self, loss: float) -> float:
        """Returns ln of the equivalent budget; beyond the ends along the slope of the whole curve, since one part of a
        noisy curve may be flat."""
        x = math.log(loss)
        knots, budgets, cubics = self._pieces
        if x > knots[-1]:
            return budgets[-1] + (x - knots[-1]) * self._slope
        if x < knots[0]:
            return budgets[0] + (x - knots[0]) * self._slope
        piece = min(bisect_right(knots, x), len(cubics)) - 1
        cubic, square, linear, constant = cubics[piece]
        s = x - knots[piece]
        return constant + linear * s + square * (s * s) + cubic * (s * s * s)

    @cached_property
    def _pieces(self) -> tuple[list[float], list[float], list[list[float]]]:
        """Returns the inverse by its pieces: knots, values there, coefficients, the highest power first. A board asks
        for one value, hundreds of thousands of times, of which scipy takes most for a look at its arguments."""
        from scipy.interpolate import PchipInterpolator

        inverse = PchipInterpolator(self.log_losses[::-1], self.log_budgets[::-1])
        return inverse.x.tolist(), self.log_budgets[::-1].tolist(), inverse.c.T.tolist()

    def log_loss(self, log_budget: float) -> float:
        """Returns ln of the loss at a budget between the ends."""
        return float(self._fit(log_budget))

    @cached_property
    def _fit(self) -> PchipInterpolator:
        from scipy.interpolate import PchipInterpolator

        return PchipInterpolator(self.log_budgets, self.log_losses)

    @cached_property
    def _slope(self) -> float:
        """Returns d ln budget / d ln loss between the ends; negative."""
        x, y = self.log_losses, self.log_budgets
        return float((y[-1] - y[0]) / (x[-1] - x[0]))

    def beyond(self, losses: Sequence[float]) -> int:
        """Returns -1 where the mean of the losses is above what the smallest budget gives, 1 where it is below what the
        largest gives, else 0."""
        x = float(np.mean(np.log(losses)))
        return -1 if x > self.log_losses[0] else 1 if x < self.log_losses[-1] else 0

    def log_budget_ratios(self, reference: Sequence[float], contender: Sequence[float]) -> Floats:
        """Returns, per seed: ln of the equivalent budget of the contender's final loss over that of the reference's."""
        pairs = zip(reference, contender, strict=True)
        return np.array([self.log_budget(ours) - self.log_budget(theirs) for theirs, ours in pairs])

    def uncertainty(self, reference: Sequence[float], contender: Sequence[float]) -> float:
        """Returns the standard error of the mean of :meth:`log_budget_ratios` that comes from the curve: the
        jackknife over its seeds (Efron & Stein 1981). 0 where one seed cannot tell: then there are no
        :attr:`degrees_of_freedom`."""
        means = [ruler.log_budget_ratios(reference, contender).mean() for ruler in self._left_out]
        return float(_jackknife(np.array(means)))

    @property
    def degrees_of_freedom(self) -> int:
        """Returns the degrees of freedom of :meth:`uncertainty`."""
        return max(0, len(self._left_out) - 1)

    @cached_property
    def log_errors(self) -> Floats:
        """Returns the standard errors of :attr:`log_losses` by the jackknife [budgets]; 0 where there is one seed."""
        means = [ruler.log_losses for ruler in self._left_out]
        return _jackknife(np.array(means).reshape(-1, len(self.budgets)))

    @cached_property
    def _left_out(self) -> list[Ruler]:
        """Returns the curves without each seed in turn, where every budget still has one."""
        if len(self.losses) < 2:
            return []
        tables = [np.delete(self.losses, index, axis=0) for index in range(len(self.losses))]
        return [Ruler(self.budgets, table) for table in tables if not np.isnan(table).all(axis=0).any()]


def ruler_of(learned: Iterable[Learned], own_steps: int) -> Ruler | None:
    """Returns the curve of a reference's runs, which differ in steps and seed alone; None where there are too few
    budgets."""
    by_budget: dict[int, dict[int, float]] = {}
    machine = ""
    for run in learned:
        if run.status == "ok" and run.final and run.steps and 0 < run.final.loss < math.inf:
            by_budget.setdefault(run.conditions.steps, {})[run.seed] = run.final.loss
            machine = run.home.name
    if len(by_budget) < FEWEST or own_steps not in by_budget:
        return None
    budgets = sorted(by_budget)
    seeds = sorted({seed for losses in by_budget.values() for seed in losses})
    table = np.array([[by_budget[steps].get(seed, math.nan) for steps in budgets] for seed in seeds])
    return Ruler(tuple(steps / own_steps for steps in budgets), table, machine)


def steps_at(share: float, own_steps: int) -> int:
    """Returns the reference's steps at a budget."""
    return max(2, round(share * own_steps))


def _jackknife(left_out: Floats) -> Floats:
    """Returns the standard error of a mean from its values [seeds, ...] without each seed in turn; 0 of fewer than
    two."""
    n = len(left_out)
    if n < 2:
        return np.zeros(left_out.shape[1:])
    error: Floats = np.sqrt((n - 1) / n * np.square(left_out - left_out.mean(axis=0)).sum(axis=0))
    return error


def _means(values: Floats) -> Floats:
    """Returns means over seeds [budgets], where seeds are missing at some budgets: of each seed's distance to the
    others at the budgets that they share (two-way fit without interaction), so that a missing seed shifts nothing."""
    seeds, budgets = np.nonzero(~np.isnan(values))
    design = np.zeros((len(seeds), sum(values.shape)))
    design[np.arange(len(seeds)), budgets] = 1.0
    design[np.arange(len(seeds)), values.shape[1] + seeds] = 1.0
    fit = np.linalg.lstsq(design, values[seeds, budgets], rcond=None)[0]
    levels, offsets = fit[: values.shape[1]], fit[values.shape[1] :]
    means: Floats = levels + offsets[np.unique(seeds)].mean()
    return means
