"""Measures what growing costs beside the training around it, and what a grown model's step costs beside a fresh one's.

For the studies of the techniques that train a smaller model first. Timed evidence compares steps alone: what happens
between its windows, as growth does, is on no clock there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from suite.entries.jobs import run_of
from suite.judge.statistics import replicate_interval
from suite.loop.run import Run
from suite.meters.clock import Clock
from suite.record.job import Job
from suite.topics.studies.lab import Lab, StudyTable

STEPS = 40  # of the short run that grows; every schedule by progress comes round
ROUNDS = 12
BLOCK = 4  # steps on a side's turn
NOTE = (
    "Seconds of a whole run that its growths take, and all others; the share of the first in both; a step of the grown "
    "model over one of a fresh model of that size, by turns in one process, mean and 95 % interval over the rounds"
)


class Cost(NamedTuple):
    """Records one stack at a setting."""

    stack: str
    growths: int
    growth_s: float
    training_s: float
    share: float
    step_over_fresh: float
    low: float
    high: float


def growth_costs(lab: Lab, *stacks: str) -> StudyTable:
    """Returns the table ``growth_cost``; these runs are not recorded."""
    rows = []
    for number, stack in enumerate(stacks):
        lab.progress(number / len(stacks), f"what the growth of {stack} costs")
        rows.append(tuple(_cost(lab, stack)))
    return StudyTable("growth_cost", Cost._fields, rows, NOTE)


def _cost(lab: Lab, stack: str) -> Cost:
    setting = lab.setting
    run, fresh = (run_of(Job(setting=setting.but(steps=STEPS), stack=stack)) for stack in (stack, "baseline"))
    after_step, spent_s, growths_s, training_s = run.technique.after_step, list[float](), list[float](), 0.0

    def timed(run: Run) -> None:
        spent_s.append(_seconds(lambda: after_step(run), run))

    run.technique.after_step = timed  # type: ignore[method-assign]
    for _ in range(STEPS):
        before = _parameters(run)
        training_s += _seconds(lambda: run.train(1), run)
        if _parameters(run) != before:
            growths_s.append(spent_s[-1])
    growth_s = sum(growths_s)
    whole_s = (training_s - growth_s) * run.baseline.recipe_of(setting).steps / STEPS
    spread = replicate_interval([_log_ratio(run, fresh, number) for number in range(ROUNDS)])
    over_fresh = (math.exp(bound) for bound in (spread.estimate, spread.low, spread.high))
    return Cost(stack, len(growths_s), growth_s, whole_s, growth_s / (growth_s + whole_s), *over_fresh)


def _parameters(run: Run) -> int:
    return sum(parameter.numel() for parameter in run.model.parameters())


def _log_ratio(run: Run, fresh: Run, number: int) -> float:
    """Returns the ln of the run's time per step over the fresh one's, of a round: ABBA, or BAAB in every second one."""
    first, second = (run, fresh) if number % 2 else (fresh, run)
    spent_s = dict.fromkeys((run, fresh), 0.0)
    for side in (first, second, second, first):
        spent_s[side] += _seconds(partial(side.train, BLOCK), side)
    return math.log(spent_s[run] / spent_s[fresh])


def _seconds(action: Callable[[], object], run: Run) -> float:
    clock = Clock(run.device)
    start_s = clock.now_s()
    action()
    return clock.now_s() - start_s
