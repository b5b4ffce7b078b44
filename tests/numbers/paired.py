"""Two pieces of work in one process, in turn: what the load of the machine does to one it does to the other."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

from suite.entries.catalogue import lookup
from suite.entries.installed import baselines
from suite.entries.spelling import build
from suite.judge.statistics import Interval, median_interval
from suite.loop.run import Run

ROUNDS = 40


def entry(text: str) -> tuple[str, str]:
    """A stack and a baseline, of ``stack:baseline``. Raises ArgumentTypeError."""
    stack, _, baseline = text.rpartition(":")
    try:
        build(stack)
        lookup("baseline", baseline, baselines())
    except (LookupError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} is no stack:baseline: {error}") from None
    return stack, baseline


def ratio(ours: Callable[[], object], theirs: Callable[[], object], clock_s: Callable[[], float]) -> Interval:
    """Seconds of ``ours`` over those of ``theirs``, in ABBA order, after each was done once."""

    def seconds(work: Callable[[], object]) -> float:
        start_s = clock_s()
        work()
        return clock_s() - start_s

    seconds(ours), seconds(theirs)
    log_ratios = []
    for _ in range(ROUNDS):
        first, second, third, fourth = map(seconds, (ours, theirs, theirs, ours))
        log_ratios.append(math.log((first + fourth) / (second + third)))
    return median_interval(log_ratios).ratio()


def step_ratio(run: Run, other: Run) -> Interval:
    """CPU seconds of a step of ``run`` over one of ``other``."""
    return ratio(partial(run.train, 1), partial(other.train, 1), time.process_time)
