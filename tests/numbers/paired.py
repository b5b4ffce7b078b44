"""Steps of two runs in one process, in turn: what the load of the machine does to one it does to the other."""

from __future__ import annotations

import math
import time

from suite.contract.run import Run
from suite.judge.statistics import Interval, median_interval

ROUNDS = 40


def step_ratio(run: Run, other: Run, rounds: int = ROUNDS) -> Interval:
    """CPU seconds of a step of ``run`` over one of ``other``, in ABBA order."""

    def step_s(of: Run) -> float:
        start_s = time.process_time()
        of.train(1)
        return time.process_time() - start_s

    step_s(run), step_s(other)
    log_ratios = []
    for _ in range(rounds):
        first, second, third, fourth = map(step_s, (run, other, other, run))
        log_ratios.append(math.log((first + fourth) / (second + third)))
    return median_interval(log_ratios).ratio()
