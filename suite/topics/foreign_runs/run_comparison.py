"""Compares runs of two sides by their final losses: equivalent budget on the reference's scaling curve, or loss ratio.

With y a mean of ln final losses over runs of one length, h the reference's curve inverted, T the contender's budget:

    equivalent budget over own = exp(h(y)) / T
    y's error^2 = s_c^2 / n_c + sum over the curve's lengths of w_i^2 s_i^2 / n_i

where w are the shares that the lengths beside h(y) have in the curve there, those of linear interpolation. Runs of the
two sides are independent: another program's seeds need not mean the same weights and batches. Variances are shared
among the lengths of a side (Smyth 2004), the two sides' errors add by Welch, and the ends of y's interval are read on
the curve. Where each side has one run of each length, the scatter of a side's points about a smooth curve stands for
that of runs, assumed alike on both sides. Times are a second factor, with the interval of a product of independent
estimates (Zou & Donner 2008).

A final loss beyond the curve is read on its last piece, as far as half of that; further out the answer is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from suite.judge.ruler import FEWEST, Ruler
from suite.judge.statistics import (
    OVER_REPLICATES,
    Floats,
    Interval,
    Prior,
    detectable_effect,
    difference_interval,
    moderated_interval,
    pooled_variance,
    replicate_interval,
    required_replicates,
)
from suite.topics.foreign_runs.run_of_log import ForeignRun

Kind = Literal["measured", "extrapolated", "bound", "loss ratio"]
SAME_LENGTH = 0.02  # runs whose budgets differ by less are of one length
REACH = 0.5  # of the curve's last piece: as far as it is continued
MOST_SEEDS = 1000  # beyond this, more of them are no advice
MOST_KNOTS = 24  # of a curve within a run
LEVEL = 0.95
LARGEST = 700.0  # of a logarithm that has a number


@dataclass(frozen=True)
class OneLength:
    """Holds the runs of one side that have the same length. ``log_losses`` [runs]."""

    runs: Sequence[ForeignRun]
    budget: float
    log_losses: Floats

    @classmethod
    def of(cls, runs: Sequence[ForeignRun]) -> OneLength:
        lengths = {run.length for run in runs}
        budget = (
            lengths.pop() if len(lengths) == 1 else math.exp(float(np.mean([math.log(run.length) for run in runs])))
        )
        return cls(runs, budget, np.array([run.log_loss for run in runs]))

    @property
    def mean(self) -> float:
        return float(self.log_losses.mean())


def by_length(runs: Sequence[ForeignRun]) -> list[OneLength]:
    """Returns the runs of a side by length, ascending."""
    groups: list[list[ForeignRun]] = []
    for run in sorted(runs, key=lambda run: run.length):
        if groups and run.length <= groups[-1][0].length * (1 + SAME_LENGTH):
            groups[-1].append(run)
        else:
            groups.append([run])
    return [OneLength.of(group) for group in groups]


@dataclass(frozen=True)
class Curve:
    """Holds the reference's scaling curve by its lengths. ``within``: it is read inside runs, which had not decayed."""

    lengths: Sequence[OneLength]
    within: bool = False

    @cached_property
    def ruler(self) -> Ruler:
        means = [[math.exp(length.mean) for length in self.lengths]]
        return Ruler([length.budget for length in self.lengths], means)

    @property
    def ends(self) -> tuple[float, float]:
        return self.ruler.ends

    def log_budget(self, log_loss: float) -> float:
        """Returns h; infinite where that is further beyond the ends than REACH."""
        piece, share = self._place(log_loss)
        last = len(self.lengths) - 2
        if 0 <= share <= 1:
            return self.ruler.log_budget(math.exp(log_loss))
        if (piece == 0 and share < -REACH) or (piece == last and share > 1 + REACH):
            return math.copysign(math.inf, share)
        x = self.ruler.log_budgets
        return float(x[piece] + share * (x[piece + 1] - x[piece]))

    def weights(self, log_loss: float) -> dict[int, float]:
        """Returns the share that each length's mean has in the curve at a loss."""
        piece, share = self._place(log_loss)
        return {piece: 1 - share, piece + 1: share}

    def slope(self, log_loss: float) -> float:
        """Returns how much ln budget a unit of ln loss is worth there; positive."""
        piece, _ = self._place(log_loss)
        x, y = self.ruler.log_budgets, self.ruler.log_losses
        return float((x[piece + 1] - x[piece]) / (y[piece] - y[piece + 1]))

    def log_loss(self, budget: float) -> float:
        """Returns ln of the loss at a budget; NaN beyond the ends."""
        low, high = self.ends
        near = min(max(budget, low), high)
        return self.ruler.log_loss(math.log(near)) if abs(near / budget - 1) < SAME_LENGTH else math.nan

    def _place(self, log_loss: float) -> tuple[int, float]:
        """Returns the piece of the curve that a loss is in, or beyond, and the share of the piece that is before it."""
        y = self.ruler.log_losses
        piece = min(max(int(np.searchsorted(-y, -log_loss)) - 1, 0), len(y) - 2)
        return piece, float((y[piece] - log_loss) / (y[piece] - y[piece + 1]))


def curve_within(runs: Sequence[ForeignRun]) -> Curve:
    """Returns the curve that the evaluations inside runs of one length make, at budgets that all of them have.

    Raises ValueError where there are too few.
    """
    shared = sorted(set.intersection(*({float(budget) for budget in run.budgets if budget > 0} for run in runs)))
    if len(shared) < FEWEST:
        raise ValueError(
            f"--mid-schedule: the reference's runs share {len(shared)} evaluations, and a curve needs {FEWEST}; "
            "evaluate all of them at the same points"
        )
    spread = np.exp(np.linspace(math.log(shared[0]), math.log(shared[-1]), MOST_KNOTS))
    chosen = sorted({min(shared, key=lambda budget: abs(budget - wanted)) for wanted in spread})
    lengths = []
    for budget in chosen:
        cut = [_until(run, budget) for run in runs]
        lengths.append(OneLength(cut, budget, np.array([run.log_loss for run in cut])))
    return Curve(lengths, within=True)


def _until(run: ForeignRun, budget: float) -> ForeignRun:
    end = int(np.searchsorted(run.budgets, budget)) + 1
    return replace(run, budgets=run.budgets[:end], losses=run.losses[:end], seconds=run.seconds[:end])


@dataclass(frozen=True)
class Scatter:
    """Says how a side's runs of one length differ. ``prior``: of their variance. ``own``: these runs themselves say it;
    else the other side's do, or the curve's scatter."""

    prior: Prior | None
    how: Literal["own runs", "the other side's runs", "the curve", ""]


@dataclass(frozen=True)
class BudgetReading:
    """Says what the contender's runs of one length are worth.

    Attributes:
        worth: equivalent budget over own, or for a ``loss ratio`` the contender's final loss over the reference's; with
            the ends of a 95 % interval, infinite or 0 where the curve ends before them.
        speedup: time of the reference to the same loss over the contender's; None where no times are logged.
        pace: the contender's time for a unit of budget over the reference's; None where no times are logged.
        detectable: the least change of ``worth`` that these runs would probably (80 %) have shown, as a ratio.
        seeds_more: how many more runs on each side would decide; None where it is decided, or more would not help.
        log_loss_error: the standard error behind the interval, of ln loss.
    """

    kind: Kind
    contender: OneLength
    reference: OneLength | None
    worth: Interval
    speedup: Interval | None
    pace: Interval | None
    detectable: float
    seeds_more: int | None
    log_loss_error: float
    scatter: str

    @property
    def decided(self) -> bool:
        return not self.worth.low < 1 < self.worth.high  # a bound may begin at 1

    @property
    def better(self) -> bool:
        """Tells whether the estimate is for the contender."""
        if self.kind == "bound":
            return math.isinf(self.worth.high)
        return self.worth.estimate < 1 if self.kind == "loss ratio" else self.worth.estimate > 1


def compared(
    reference: Sequence[ForeignRun], contender: Sequence[ForeignRun], mid_schedule: bool = False
) -> tuple[Curve | None, list[BudgetReading]]:
    """Returns the reference's curve, where it has one, and a reading for each length of the contender's runs.

    Raises ValueError for ``mid_schedule`` where runs of several lengths make a curve, or share too few evaluations.
    """
    theirs, ours = by_length(reference), by_length(contender)
    if mid_schedule and len(theirs) >= FEWEST:
        raise ValueError(
            "--mid-schedule is for a reference of one length: runs of several make the curve; leave it out"
        )
    curve = Curve(theirs) if len(theirs) >= FEWEST else None
    if mid_schedule:
        curve = curve_within(max(theirs, key=lambda length: length.budget).runs)
    on_each_side = _scatter(curve.lengths if curve else theirs, ours, curve)
    if curve is None:
        return None, [_ratio(own, theirs, reference, *on_each_side) for own in ours]
    return curve, [_on_curve(own, curve, reference, *on_each_side) for own in ours]


def _scatter(theirs: Sequence[OneLength], ours: Sequence[OneLength], curve: Curve | None) -> tuple[Scatter, Scatter]:
    """Returns the scatter of the reference's and of the contender's runs."""
    if curve and curve.within:  # evaluations of one run scatter together
        theirs = theirs[-1:]
    priors = [pooled_variance([length.log_losses for length in side]) for side in (theirs, ours)]
    if not any(priors):
        about = _about_curves([side for side in (theirs, ours) if curve and not curve.within])
        return Scatter(about, "the curve" if about else ""), Scatter(about, "the curve" if about else "")
    return (
        Scatter(priors[0], "own runs") if priors[0] else Scatter(priors[1], "the other side's runs"),
        Scatter(priors[1], "own runs") if priors[1] else Scatter(priors[0], "the other side's runs"),
    )


def _about_curves(sides: Sequence[Sequence[OneLength]]) -> Prior | None:
    """Returns the variance of single runs about a parabola of each side's ln losses in ln budget, of three lengths
    about a line, whose bend then counts as scatter."""
    squares, dof = 0.0, 0
    for lengths in sides:
        degree = min(2, len(lengths) - 2)
        if degree < 1:
            continue
        x = np.log([length.budget for length in lengths])
        y = np.array([length.mean for length in lengths])
        squares += float(np.square(y - np.polyval(np.polyfit(x, y, degree), x)).sum())
        dof += len(lengths) - degree - 1
    return Prior(squares / dof, math.inf, dof) if squares > 0 else None


def _error_of(values: Floats, scatter: Scatter) -> Interval:
    """Returns the interval of a mean over runs: its standard error is what is wanted of it."""
    return moderated_interval(values, scatter.prior, LEVEL)


def _difference(ours: Floats, theirs: Sequence[tuple[float, Floats]], of_theirs: Scatter, of_ours: Scatter) -> Interval:
    """Returns the interval of mean(ours) - sum of weight x mean(theirs), of independent runs."""
    centre = float(ours.mean()) - sum(weight * float(values.mean()) for weight, values in theirs)
    n = min(len(ours), *(len(values) for _, values in theirs))
    if of_theirs.how == of_ours.how == "own runs":
        parts = [(weight, _error_of(values, of_theirs)) for weight, values in theirs if weight]
        error = math.sqrt(sum((weight * part.standard_error) ** 2 for weight, part in parts if part.half_width))
        dof = min((part.degrees_of_freedom for _, part in parts), default=math.inf)
        own = _error_of(ours, of_ours)
        exactly = Interval(own.estimate - centre, own.estimate - centre, own.estimate - centre, LEVEL, "", own.n)
        return replace(difference_interval(own, exactly, error, dof), n=n)
    prior = of_ours.prior if of_ours.how == "own runs" else of_theirs.prior
    if prior is None:  # equal losses, to the last digit, say nothing of noise
        return Interval(centre, -math.inf, math.inf, LEVEL, OVER_REPLICATES, n, 0)
    share = 1 / len(ours) + sum(weight**2 / len(values) for weight, values in theirs)
    spread = Prior(prior.variance * share, prior.degrees_of_freedom, prior.pooled)
    return replace(moderated_interval([centre], spread, LEVEL), n=n)


def _seeds_more(total: Interval) -> int | None:
    """Returns how many more runs a side would decide, were the difference what it looks like."""
    if not total.contains(0) or not math.isfinite(total.half_width) or total.estimate == 0:
        return None
    sigma = total.standard_error * math.sqrt(total.n)
    if (4 * sigma / abs(total.estimate)) ** 2 > MOST_SEEDS:
        return None
    return max(1, required_replicates(sigma, abs(total.estimate)) - total.n)


def _ratio(
    own: OneLength, theirs: Sequence[OneLength], reference: Sequence[ForeignRun], of_theirs: Scatter, of_ours: Scatter
) -> BudgetReading:
    """Reads the ratio of losses to the reference's runs of the nearest length."""
    near = min(theirs, key=lambda length: abs(math.log(length.budget / own.budget)))
    total = _difference(own.log_losses, [(1.0, near.log_losses)], of_theirs, of_ours)
    return BudgetReading(
        "loss ratio",
        own,
        near,
        total.ratio(),
        None,
        pace.ratio() if (pace := _pace(own, reference)) else None,
        math.exp(detectable_effect(total)) if math.isfinite(total.half_width) else math.inf,
        _seeds_more(total),
        total.standard_error if math.isfinite(total.half_width) else math.inf,
        of_ours.how,
    )


def _on_curve(
    own: OneLength, curve: Curve, reference: Sequence[ForeignRun], of_theirs: Scatter, of_ours: Scatter
) -> BudgetReading:
    """Reads the runs of one length on the reference's curve."""
    y = own.mean
    weights = curve.weights(y)
    knots = [(weight, curve.lengths[at].log_losses) for at, weight in weights.items()]
    total = _difference(own.log_losses, knots, of_theirs, of_ours)
    half = total.half_width
    at_y, low, high = (curve.log_budget(value) for value in (y, y + half, y - half))
    log_own = math.log(own.budget)
    log = replace(total, estimate=at_y - log_own, low=low - log_own, high=high - log_own)
    outside = not curve.ends[0] <= math.exp(at_y) <= curve.ends[1]
    if math.isinf(at_y):
        end = math.log(curve.ends[0 if at_y < 0 else 1]) - log_own
        ends = (-math.inf, max(log.high, end)) if at_y < 0 else (min(log.low, end), math.inf)
        log = replace(log, estimate=end, low=ends[0], high=ends[1])
    slope, pace = curve.slope(y), _pace(own, reference)
    expected = curve.log_loss(own.budget)
    shift = replace(total, estimate=y - expected, low=y - expected - half, high=y - expected + half)
    return BudgetReading(
        "bound" if math.isinf(at_y) else "extrapolated" if outside else "measured",
        own,
        _of_length(curve, own.budget),
        log.ratio(),
        _speedup(log, pace) if pace and math.isfinite(at_y) else None,
        pace.ratio() if pace else None,
        math.exp(min(slope * detectable_effect(total), LARGEST)) if math.isfinite(half) else math.inf,
        _seeds_more(shift) if math.isfinite(expected) and log.contains(0) else None,
        total.standard_error if math.isfinite(half) else math.inf,
        of_ours.how,
    )


def _of_length(curve: Curve, budget: float) -> OneLength | None:
    """Returns the curve's length of a budget, where it has one."""
    same = (length for length in curve.lengths if abs(length.budget / budget - 1) < SAME_LENGTH)
    return None if curve.within else next(same, None)


def _pace(own: OneLength, reference: Sequence[ForeignRun]) -> Interval | None:
    """Returns ln of the contender's time for a unit of budget over the reference's; one run's clock is taken as it is.
    None where a run's time is not logged."""
    theirs, ours = (np.array([run.log_pace for run in side]) for side in (reference, own.runs))
    if not (np.isfinite(theirs).all() and np.isfinite(ours).all()):
        return None
    paces = [replicate_interval(side, LEVEL) for side in (ours, theirs)]
    exact = [pace if pace.n > 1 else replace(pace, low=pace.estimate, high=pace.estimate) for pace in paces]
    return difference_interval(exact[0], exact[1])


def _speedup(log_worth: Interval, pace: Interval) -> Interval:
    """Returns the time of the reference to the same loss over the contender's: worth over the ratio of their paces."""
    centre = log_worth.estimate - pace.estimate
    below = math.hypot(log_worth.estimate - log_worth.low, pace.half_width)
    above = math.hypot(log_worth.high - log_worth.estimate, pace.half_width)
    return replace(log_worth, estimate=centre, low=centre - below, high=centre + above).ratio()
