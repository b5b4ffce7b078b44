"""One seed of a pair: what both sides cost and reached, computed from a record's raw samples.

Every ratio is a *cost*, contender over reference: below 1 is better, a speedup is its inverse. The contenders of a
record may have different numbers of steps and pass through the same rounds, so the unit of progress is the
*reference step*: a contender of half the steps makes two with each of its own. Training cost is the time per such step.

A step's cost may change during a run (growth, pruning, freezing), so one median over all rounds would price only the
middle of it. Rounds after warm-up are cut into SEGMENTS; each is priced at the exponential of its median log ratio,
which keeps the hiccups of a shared machine out. What the medians leave out is still charged or shown: the excess of
warm-up rounds (compilation) belongs to the set-up cost, and a row whose summed times exceed its medians says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from suite.judge.statistics import (
    EqualCost,
    Floats,
    TimeToQuality,
    median,
    quality_at_equal_cost,
    round_log_ratios,
    time_to_quality,
    warmup_rounds,
)
from suite.record.schema import SAME_COST, Outcome, Record

SEGMENTS = 5


@dataclass(frozen=True)
class Replicate:
    """One seed of a pair: what both sides cost and reached.

    ``step_log_ratios`` [rounds after warm-up]: ln of the contender's time per own step over the reference's.
    ``costs`` [evaluations]: what the contender had spent at each, in reference steps, without set-up.
    ``setup_cost``: what its set-up took more than the reference's, in reference steps, the excess of warm-up rounds
    included; negative when it took less. ``hidden_log_cost``: ln of summed over segment-median training cost.
    """

    seed: int
    reference: Outcome
    contender: Outcome
    warmup: int
    step_log_ratios: Floats
    training_log_ratio: float
    training_log_samples: Floats
    costs: Floats
    setup_cost: float
    hidden_log_cost: float
    reference_step_s: float

    @cached_property
    def reference_curve(self) -> Floats:
        return curve(self.reference)

    @cached_property
    def contender_curve(self) -> Floats:
        return curve(self.contender)

    @property
    def sides(self) -> tuple[Outcome, Outcome]:
        return self.reference, self.contender

    @property
    def total_cost_ratio(self) -> float:
        """The cost of set-up and training over that of the reference's training."""
        assert self.reference.steps
        return math.exp(self.training_log_ratio) + self.setup_cost / self.reference.steps

    def time_to_quality(self) -> TimeToQuality:
        return time_to_quality(self.reference_curve, self.contender_curve, self.costs, self.setup_cost)

    def at_equal_cost(self) -> tuple[EqualCost, str] | None:
        """The losses when the reference's budget is spent, how they were obtained; None where none is known then."""
        final = float(self.reference_curve[-1, 1])
        if self.contender.equal_time:
            return EqualCost(self.contender.equal_time.loss, final, True), "schedule fitted to the budget"
        if abs(self.total_cost_ratio - 1) <= SAME_COST:
            return EqualCost(float(self.contender_curve[-1, 1]), final, True), "equal steps are equal time here"
        read = quality_at_equal_cost(self.reference_curve, self.contender_curve, self.costs, self.setup_cost)
        if read is None:
            return None
        return read, "finished before the budget" if read.decayed else "undecayed: read off the curve"


def curve(contender: Outcome) -> Floats:
    """The curve of (step, test loss) [evaluations, 2]."""
    return np.array([(each.step, each.loss) for each in contender.curve], dtype=np.float64).reshape(-1, 2)


def replicate_of(record: Record, index: int) -> Replicate:
    """Compare outcome ``index`` of a record with its reference; both have status ok.

    Raises ValueError with one sentence on samples that give no ratio.
    """
    reference, contender = record.reference, record.contenders[index]
    if not (reference.steps and contender.steps):
        raise ValueError("the number of steps was not recorded")
    if reference.setup_s is None or contender.setup_s is None:
        raise ValueError("the set-up time was not recorded")
    rounds = min(len(reference.block_s), len(contender.block_s))
    a_s, b_s = (np.array(each.block_s[:rounds], dtype=np.float64) for each in (reference, contender))
    a_steps, b_steps = (np.array(each.block_steps[:rounds], dtype=np.float64) for each in (reference, contender))
    if a_s.shape != a_steps.shape or b_s.shape != b_steps.shape or not (a_steps > 0).all() or not (b_steps > 0).all():
        raise ValueError("block times and block steps do not fit together")
    warmup = warmup_rounds({"reference": a_s / a_steps, "contender": b_s / b_steps})
    d = round_log_ratios(a_s / a_steps, b_s / b_steps)
    progress = math.log(contender.steps / reference.steps)

    segments = _segments(warmup, rounds)
    pace = np.concatenate([np.full(len(each), median(d[each])) for each in segments])
    rate = np.concatenate([np.full(warmup, math.exp(pace[0])), np.exp(pace)]) * math.exp(progress)
    share = b_steps.sum(axis=1) / contender.steps
    spent = np.concatenate([[0.0], np.cumsum(rate * share)]) * reference.steps
    training = math.log(float((rate * share).sum() / share.sum()))
    around = d[warmup:] - pace
    steps = np.concatenate([[0.0], np.cumsum(b_steps.sum(axis=1))])

    first = segments[0]
    step_s = median(a_s[warmup:].sum(axis=1) / a_steps[warmup:].sum(axis=1))
    late = slice(warmup, None)
    summed = math.log(b_s[late].sum() / b_steps[late].sum()) - math.log(a_s[late].sum() / a_steps[late].sum())
    priced = math.log(float((np.exp(pace) * share[late]).sum() / share[late].sum()))
    replicate = Replicate(
        seed=record.seed,
        reference=reference,
        contender=contender,
        warmup=warmup,
        step_log_ratios=d[warmup:],
        training_log_ratio=training,
        training_log_samples=around - median(around) + training,
        costs=np.interp([each.step for each in contender.curve], steps, spent),
        setup_cost=(
            contender.setup_s + _excess_s(b_s, b_steps, first) - reference.setup_s - _excess_s(a_s, a_steps, first)
        )
        / step_s,
        hidden_log_cost=summed - priced,
        reference_step_s=step_s,
    )
    derived = (training, replicate.setup_cost, replicate.hidden_log_cost, step_s, *replicate.costs)
    if not np.isfinite(derived).all():
        raise ValueError("its times are not those of a run")
    return replicate


def _segments(warmup: int, rounds: int) -> list[np.ndarray]:
    """Cut the rounds after warm-up into at most SEGMENTS nearly equal parts, of at least two rounds where possible."""
    left = np.arange(warmup, rounds)
    return np.array_split(left, max(1, min(SEGMENTS, len(left) // 2)))


def _excess_s(times_s: Floats, steps: Floats, first: np.ndarray) -> float:
    """The seconds that the rounds before the first segment took beyond that segment's median pace."""
    pace = median(times_s[first].sum(axis=1) / steps[first].sum(axis=1))
    warmup = slice(0, first[0])
    return float(times_s[warmup].sum() - pace * steps[warmup].sum())
