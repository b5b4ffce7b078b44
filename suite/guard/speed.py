"""The speed gate: the working tree's steps against a revision's, on any machine, which each check calibrates.

A set is three fresh processes in lock-step (:mod:`suite.measure.contenders.lockstep`): the revision, the revision
again, and the working tree::

    start, set up     warm-up            round 1              ...   round ROUNDS
    old new again     again old new ...  new old again again old new

Every letter is a block of steps of one side. A block's time is its own: without that in which another process had the
core (:meth:`suite.guard.gate_worker.Worker.pace`). The set's two values are medians over rounds,

    d = ln(new / sqrt(old again))    goes to the vote (:mod:`suite.guard.votes`)
    e = ln(again / old)              the same code against itself, in the same minute: what the noise is

A memory layout (addresses, order of hashes, length of the environment) makes one side some per cent faster for as long
as its processes live: of two servers of one tree one was slower by +3.5, -4.8 and +1.6 % (medians of seven pairs of
processes). Two trees of different code never share a layout, whatever is fixed. So fixed ones would add one layout's
luck to the code's effect, which no repetition averages away (Mytkowicz et al. 2009, "Producing Wrong Data Without Doing
Anything Obviously Wrong!"; Curtsinger & Berger 2013, "STABILIZER"), and runs of equal code would not show it. Here each
worker draws a layout of its own, and its luck is noise among sessions. Workers are as fresh as sets may pay for:
SETS_A_SESSION sets have the same ones.

The e's are the run's calibration, its A/A record. Where they alone raise an alarm, this machine sides with a process:
it is unfit, and no speed is judged.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from suite.guard.findings import Finding
from suite.guard.regression import item_of
from suite.guard.trees import TreeWorker
from suite.guard.votes import MOST_SETS, Rule, errors, sets_needed, threshold_for
from suite.judge.statistics import median_interval, round_log_ratios
from suite.judge.verdicts import ChangeVerdict
from suite.measure.contenders.lockstep import in_rounds, steps_of_blocks
from suite.measure.provenance import Progress, silent
from suite.process.child import ContenderFailed
from suite.record.job import Job

MINUTES = 10.0
ROUNDS = 8
SETS_A_SESSION = 4
AT_A_TIME = 8  # items that share a session: its libraries load once for all of them
BLOCK_S = 0.015  # at least: the first step after another process had the caches is a small part of it
MOST_STEPS = 8  # of a block
FEWEST_SETS = 3  # for a word about noise
Trees = dict[str, TreeWorker]
"""The workers of a session: "old", "again" and "new"."""


class GateFailed(ContenderFailed):
    """One side could not be timed; ``side`` is the name of its worker."""

    def __init__(self, side: str, failure: ContenderFailed) -> None:
        super().__init__(failure.status, failure.reason, failure.details)
        self.side = side


def in_fresh_processes(
    workers: Mapping[str, TreeWorker], job: Job, seed: int, coin: random.Random, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the blocks [ROUNDS, 2], of ``steps`` steps each, of one fresh contender of each worker, in lock-step,
    without a round before that warms up. Raises GateFailed."""
    numbers = 2 * (ROUNDS + 1)
    request = Job(setting=job.setting.but(steps=numbers * steps), stack=job.stack, seed=seed).model_dump()
    parts: dict[str, list[int]] = {}

    def ask(name: str, command: str, **arguments: Any) -> Any:
        try:
            return workers[name].ask(command, **arguments)
        except ContenderFailed as failure:
            raise GateFailed(name, failure) from None

    def block_s(name: str, number: int) -> float:
        seconds: float = ask(name, "pace", steps=max(1, parts[name][number]))
        return seconds

    try:
        for name in coin.sample(list(workers), len(workers)):
            parts[name] = steps_of_blocks(ask(name, "start", job=request)["steps"], numbers)
        times = [turn.block_s for turn in in_rounds(list(workers), ROUNDS + 1, coin, block_s)][1:]
    finally:
        for name, worker in workers.items():
            if worker.alive:
                ask(name, "close")
    return {name: [each[name] for each in times] for name in workers}


@dataclass
class TimedSet:
    """Holds what is known of one item: its sets' log ratios ``d`` (new / old) and ``e`` (old / old), the seconds of the
    longest set, those of all with their share of the sessions, and the failure that ended them. ``steps``: of a block.
    """

    job: Job
    d: list[float] = field(default_factory=list)
    e: list[float] = field(default_factory=list)
    steps: int = 1
    longest_s: float = 0.0
    seconds: float = 0.0
    failure: GateFailed | None = None

    def biased(self, rule: Rule) -> bool:
        """Tells whether the revision comes out slower than itself, by votes that would decide otherwise."""
        strict = replace(rule, false_alarms=rule.misses)
        return "slower" in (strict.outcome(self.e), strict.outcome([-log_ratio for log_ratio in self.e]))

    def decided(self, rule: Rule) -> bool:
        """Tells whether no further set is wanted."""
        done = self.failure is not None or len(self.d) >= MOST_SETS
        return done or self.biased(rule) or rule.outcome(self.d) != "cannot tell"

    @property
    def seconds_a_set(self) -> float:
        """Returns the seconds that a set takes, with its share of its session."""
        return self.seconds / max(1, len(self.d))

    def sets_in(self, seconds: float) -> int:
        """Counts the sets that there is time for."""
        return int(seconds / max(self.seconds_a_set, 0.01))

    def add(self, trees: Trees, coin: random.Random) -> None:
        """Adds one more set, or the failure in its place."""
        start_s = time.monotonic()
        try:
            times = in_fresh_processes(trees, self.job, len(self.d), coin, self.steps)
        except GateFailed as failure:
            self.failure = failure
            return
        old, again, new = (np.asarray(times[name]) for name in ("old", "again", "new"))
        self.d.append(float(np.median(round_log_ratios(np.sqrt(old * again), new))))
        self.e.append(float(np.median(round_log_ratios(old, again))))
        if len(self.d) == 1:  # which had one step a block
            self.steps = min(MOST_STEPS, max(1, math.ceil(BLOCK_S / float(np.median(old)))))
        self.longest_s = max(self.longest_s, time.monotonic() - start_s)
        self.seconds += time.monotonic() - start_s


@contextmanager
def session(old: Path, new: Path, coin: random.Random) -> Iterator[Trees]:
    """Has fresh workers of the three sides."""
    with ExitStack() as stack:
        trees = {"old": old, "again": old, "new": new}
        yield {name: stack.enter_context(TreeWorker(tree, coin)) for name, tree in trees.items()}


def time_sets(
    fresh: Callable[[], AbstractContextManager[Trees]],
    jobs: Sequence[Job],
    rule: Rule,
    *,
    minutes: float,
    coin: random.Random,
    progress: Progress = silent,
) -> list[TimedSet]:
    """Sets of every job in turns, in sessions that ``fresh`` opens, until votes decide them or the ``minutes`` are
    over. Where these are too few for all, the first ones are decided and the last ones have no set."""
    start_s, loading_s = time.monotonic(), 0.0
    end_s = start_s + 60 * minutes
    items = [TimedSet(job) for job in jobs]

    def report(timed_set: TimedSet) -> None:
        spent, decided = (time.monotonic() - start_s) / (60 * minutes), sum(item.decided(rule) for item in items)
        what = f"timing {item_of(timed_set.job)} ({len(timed_set.d)} sets of processes)"
        progress(min(1.0, max(spent, decided / len(items))), what)

    for first in range(0, len(items), AT_A_TIME):
        group = items[first : first + AT_A_TIME]
        while left := _left(group, rule, end_s - loading_s):
            began_s = time.monotonic()
            with fresh() as trees:
                _load(trees, left[0])
                took_s = time.monotonic() - began_s
                loading_s = max(loading_s, took_s)
                for timed_set in left:
                    timed_set.seconds += took_s / len(left)
                for _ in range(SETS_A_SESSION):
                    for timed_set in _left(left, rule, end_s):
                        timed_set.add(trees, coin)
                        report(timed_set)
    return items


def _left(items: Sequence[TimedSet], rule: Rule, end_s: float) -> list[TimedSet]:
    """Returns the items that want another set, and have the time for it."""
    return [item for item in items if not item.decided(rule) and time.monotonic() + item.longest_s < end_s]


def _load(trees: Trees, item: TimedSet) -> None:
    """Has all workers load their libraries, at once."""

    def load(name: str) -> None:
        try:
            trees[name].ask("start", job=Job(setting=item.job.setting.but(steps=2), stack=item.job.stack).model_dump())
            trees[name].ask("close")
        except ContenderFailed as failure:
            item.failure = GateFailed(name, failure)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(load, trees))


# what it says --------------------------------------------------------------------------------------------------------


def finding(item: TimedSet, rule: Rule, minutes: float) -> Finding:
    """Returns the item as a report's row: how much slower, with its interval and how often such a check errs in this
    noise; or what would be needed to tell."""
    name, n, slower = item_of(item.job), len(item.d), f"slower by {percent(rule.slower)}"
    if item.failure:
        verdict: ChangeVerdict = "failed" if item.failure.side == "new" else "not comparable"
        side = "working tree" if item.failure.side == "new" else "revision"
        return Finding(name, "timing", verdict, f"the {side} {item.failure.status}: {item.failure}")
    if n < FEWEST_SETS:
        return Finding(name, "timing", "inconclusive", f"{n} sets of processes in {minutes:g} minutes; allow it more")
    cost = median_interval(item.d).ratio()
    low, high = (f"{end - 1:+.1%}" if 0 < end < math.inf else "?" for end in (cost.low, cost.high))
    seen = f"step time {cost.estimate - 1:+.1%} [{low}, {high}] over {n} sets of processes"
    if item.biased(rule):
        why = f"{seen}; but the revision came out slower than itself: another process sides with one; run it again"
        return Finding(name, "timing", "unfit", why)
    outcome = rule.outcome(item.d)
    if outcome == "cannot tell":
        why = f"{seen}; cannot tell {slower} from unchanged; {_needed(item, rule)}"
        return Finding(name, "timing", "inconclusive", why)
    sets = min(MOST_SETS, max(n, item.sets_in(60 * minutes)))
    rates, smallest = errors(item.e, rule, sets), threshold_for(item.e, rule, sets)
    noise = (
        f"in the noise of {rates.pairs} runs of the revision against itself such a check raises a false alarm in "
        f"{_rare(rates.alarms)} (at most {_rare(min(rates.most_alarms, rule.false_alarms))}) and notices {slower} in "
        f"{rates.caught:.0%}"
        + (f"; the smallest that {sets} sets tell from none is {smallest:.1%}" if smallest is not None else "")
    )
    if outcome == "slower":
        return Finding(name, "timing", "regressed", f"{seen}; {noise}")
    faster = cost.high < math.exp(-rule.half)
    return Finding(name, "timing", "improved" if faster else "equivalent", f"{seen}, not {slower}; {noise}")


def _needed(item: TimedSet, rule: Rule) -> str:
    """Tells what would let the item be decided."""
    n = len(item.d)
    ways = []
    if needed := sets_needed(item.e, rule):
        more = max(needed, n + SETS_A_SESSION) * item.seconds_a_set
        ways.append(f"about {math.ceil(more / 60)} minutes for it alone")
    if (threshold := threshold_for(item.e, rule, n)) and threshold > rule.slower:
        ways.append(f"--slower {math.ceil(100 * threshold)}%")
    return f"it takes {' or '.join(ways)}" if ways else "it takes a quieter machine"


def percent(share: float) -> str:
    """Returns ``10%``, ``2.5%``."""
    return f"{100 * share:g}%"


def _rare(rate: float) -> str:
    """Returns ``0.3%``; what is too rare to say how rare as a bound."""
    return f"{rate:.1%}" if rate >= 0.001 else "<0.1%"
