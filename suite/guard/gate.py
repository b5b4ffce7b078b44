"""The timing tier of the regression gate: this tree against another, in the same minute, over many process pairs.

One process pair: a contender of each tree (the order of their start is a coin), a warm-up round, then ROUNDS rounds in
random ABBA or BAAB order. The pair's value is the *median* of its rounds' log ratios d = ln(new / old), since rounds of
one pair agree with each other about a wrong number. Whatever the machine does to a process, the coin makes every
pair's sign exchangeable under "same code", so the sign e-process over pairs may be looked at after each of them:

    H1 slower:      signs of d - ln(1+margin)       rejected at E >= 1/alpha: regressed
    H2 not slower:  signs of ln(1+margin) - d       rejected: no regression beyond the margin
    H3 faster:      signs of -d - ln(1+margin)      rejected: improved
    H4 not faster:  signs of d + ln(1+margin)       with H2 rejected: equivalent within the margin

The unlucky end of each is at most alpha (Ville 1939), whatever the noise, and for as long as one looks. With A/A data
the signs of H1 are mostly negative, so false alarms are far rarer than alpha; ``leantrain calibrate`` counts them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.guard.calibrated import ALPHA as ALPHA
from suite.guard.findings import Finding
from suite.guard.regression import item_of
from suite.guard.trees import TreeWorker
from suite.judge.statistics import (
    Interval,
    replicate_interval,
    round_log_ratios,
    sign_e_process,
    smallest_detectable_effect,
)
from suite.judge.verdicts import ChangeVerdict
from suite.measure.contenders.child import ContenderFailed
from suite.measure.contenders.lockstep import in_rounds, steps_of_blocks
from suite.record.job import Job

MARGIN = 0.03  # a slow-down that is worth an alarm; also what noise may shift a process by without one
BUDGET_S = 60.0
ROUNDS = 6  # of one step a block: noisier pairs than longer ones make, and more of them in the same time
STEPS_PER_BLOCK = 1
PRIOR = 0.5  # Krichevsky & Trofimov's: 6 pairs that agree decide at alpha = 0.05, where a prior of 2 needs 8
FEWEST_PAIRS = 3  # for an interval that means something
LEVEL = 0.95

DESIGN = {"rounds": ROUNDS, "steps_per_block": STEPS_PER_BLOCK, "prior": PRIOR, "alpha": ALPHA, "fixed_layout": 1}
"""What a calibration must have in common with the gate that it vouches for."""


@dataclass(frozen=True)
class Decision:
    """The verdict on the pairs so far; of an equivalence, ``within`` which fraction it holds."""

    verdict: ChangeVerdict
    interval: Interval | None
    within: float | None = None


def decide(pairs: Sequence[float], *, margin: float = MARGIN, alpha: float = ALPHA, last: bool = False) -> Decision:
    """The verdict on the pairs' log ratios so far; "inconclusive" asks for more, or, on the ``last`` look, stands.

    On the last look a pair set that excludes a regression beyond the margin, yet cannot tell "equal" from "a little
    faster", is equivalent within what its interval spans.
    """
    d = np.asarray(pairs, dtype=np.float64)
    if not len(d):
        return Decision("inconclusive", None)
    interval = replicate_interval(d, LEVEL)
    back = 1 / (1 + margin) - 1  # log1p(back) = -log1p(margin)

    def rejected(values: np.ndarray, bound: float) -> bool:
        # any look, not only the latest: a rejection that was allowed to happen stays one
        return bool(sign_e_process(values, prior=PRIOR, margin=bound).max() >= -math.log(alpha))

    if rejected(d, margin):
        return Decision("regressed", interval)
    if rejected(-d, margin):
        return Decision("improved", interval)
    not_slower = rejected(-d, back)
    if not_slower and rejected(d, back):
        return Decision("equivalent", interval, margin)
    if last and not_slower and len(d) >= FEWEST_PAIRS:
        return Decision("equivalent", interval, max(margin, math.expm1(max(-interval.low, interval.high))))
    return Decision("inconclusive", interval)


@dataclass(frozen=True)
class GateTiming:
    """A gate's outcome and the raw values behind it: each pair's log ratio new / old."""

    decision: Decision
    pairs: tuple[float, ...]
    seconds: float


def gate(
    old: TreeWorker,
    new: TreeWorker,
    job: Job,
    *,
    coin: random.Random,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    budget_s: float = BUDGET_S,
    slower: float = 0.0,
    progress: Callable[[int, float], None] = lambda pairs, spent_s: None,
) -> GateTiming:
    """Times process pairs until they decide, or until another pair would not end within ``budget_s``.

    The gate chooses the steps and seeds of ``job``. ``slower`` plants a slow-down of that share in the new side. Raises
    GateFailed where a side's run fails.
    """
    start_s, longest_s = time.monotonic(), 0.0
    pairs: list[float] = []
    while True:
        spent_s = time.monotonic() - start_s
        last = spent_s + longest_s > budget_s
        decision = decide(pairs, margin=margin, alpha=alpha, last=last)
        if last or decision.verdict != "inconclusive":
            return GateTiming(decision, tuple(pairs), spent_s)
        progress(len(pairs), spent_s)
        pairs.append(_pair(old, new, job, len(pairs), coin, slower))
        longest_s = max(longest_s, time.monotonic() - start_s - spent_s)


class GateFailed(ContenderFailed):
    """One side could not be timed; ``side`` is the name of its worker, "old" or "new"."""

    def __init__(self, side: str, failure: ContenderFailed) -> None:
        super().__init__(failure.status, failure.reason, failure.details)
        self.side = side


def _pair(old: TreeWorker, new: TreeWorker, job: Job, seed: int, coin: random.Random, slower: float) -> float:
    """The median log ratio new / old of one process pair."""
    planted = {"new": slower, "old": 0.0}
    times = in_fresh_processes(
        {"new": new, "old": old},
        job,
        seed,
        coin,
        lambda ask, name, steps: ask(name, "block", steps=steps, slower=planted[name]),
    )
    return float(np.median(round_log_ratios(times["old"], times["new"])))


Ask = Callable[..., Any]
"""``ask(name, command, **arguments)``: the answer of the worker of that name. Raises GateFailed."""


def in_fresh_processes(
    workers: Mapping[str, TreeWorker],
    job: Job,
    seed: int,
    coin: random.Random,
    block: Callable[[Ask, str, int], float],
    *,
    rounds: int = ROUNDS,
    steps: int = STEPS_PER_BLOCK,
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the blocks [rounds, 2] of one fresh contender of each worker, in lock-step, without a round before
    that warms up. ``block`` times so many steps of the contender of that name. Raises GateFailed."""
    numbers = 2 * (rounds + 1)
    request = Job(setting=job.setting.but(steps=numbers * steps), stack=job.stack, seed=seed).model_dump()
    parts: dict[str, list[int]] = {}

    def ask(name: str, command: str, **arguments: Any) -> Any:
        try:
            return workers[name].ask(command, **arguments)
        except ContenderFailed as failure:
            raise GateFailed(name, failure) from None

    try:
        for name in coin.sample(list(workers), len(workers)):
            parts[name] = steps_of_blocks(ask(name, "start", job=request)["steps"], numbers)
        turns = in_rounds(
            list(workers), rounds + 1, coin, lambda name, number: block(ask, name, max(1, parts[name][number]))
        )
        times = [turn.block_s for turn in turns][1:]
    finally:
        for name, worker in workers.items():
            if worker.alive:
                ask(name, "close")
    return {name: [block_s[name] for block_s in times] for name in workers}


def finding(job: Job, timing: GateTiming, margin: float) -> Finding:
    """The timing as a report's row, never without the interval and the smallest effect that it could have seen."""
    item, decision, n = item_of(job), timing.decision, len(timing.pairs)
    if decision.interval is None or n < FEWEST_PAIRS:
        return Finding(item, "timing", "inconclusive", f"only {n} process pairs in the budget; give it more")
    cost = decision.interval.ratio()
    smallest = math.expm1(smallest_detectable_effect(float(np.std(timing.pairs, ddof=1)), n))
    within = f"; equivalent within {decision.within:.1%}" if decision.within is not None else ""
    why = (
        f"step time {cost.estimate - 1:+.1%} [{cost.low - 1:+.1%}, {cost.high - 1:+.1%}] over {n} process pairs"
        f"{within}; margin {margin:.1%}; smallest effect that {n} pairs see {smallest:.1%}"
    )
    if decision.verdict == "inconclusive":
        why += "; no verdict in the budget: raise it, or quieten the machine"
    return Finding(item, "timing", decision.verdict, why)
