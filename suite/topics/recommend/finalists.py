"""Measures the finalists on this machine: successive halving, each rung in lock-step with one reference.

::

    rung 0   6 stacks and the reference    a third of the run     one seed, one set of processes
    rung 1   3 stacks and the reference    three fifths of it     one seed, one set of processes
    last     2 stacks, the better one without each of its members, and the reference
                                           the whole run          three seeds, three sets of processes

Each run has a whole schedule of its own length, so that all are fully decayed where they are compared; where the
minutes do not suffice for these lengths, they are shorter, and said. Where no time is left for a rung, the best of the
one before is the answer, with the reason. Steps are timed paired and interleaved (:mod:`suite.measure.timing`), so a
busy machine widens the intervals and favours no side. The reference is the baseline; where that does not fit the
memory, the most promising stack that does: what cannot fit is never run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.judge.metrics import METRICS, samples
from suite.judge.rows import Row, pairs
from suite.measure.learning import cores, learn_all
from suite.measure.provenance import Progress, conditions_of, portion, silent
from suite.measure.timing import Protocol, time_together
from suite.record.job import BASELINE, Job, Setting
from suite.record.machine import busy_cores
from suite.record.schema import FIFTHS, Learned, Line, Timed
from suite.record.store import Records, Store
from suite.topics.recommend.choice import Estimate, Goal, Trial, halved, paired, rungs

MOST = 6  # finalists
SHARES = (0.35, 0.6, 1.0)  # of the whole run, by rung; the last is the last rung's
REPLICATES = 3  # seeds, and sets of processes, of the last rung
LAST_SHARE = 2  # of the minutes, in shares of a rung before it
LEAST_STEPS = 20
PROCESSES = 2.0  # times its set-up and warm-up, a process takes besides its steps: it is forked, evaluates, counts
TIMED = ("whole_time", "equivalent_budget", "loss")


@dataclass(frozen=True)
class Pace:
    """Holds the seconds of a reference step, of a process besides its steps, and of a set of processes besides
    those."""

    step_s: float
    process_s: float
    set_s: float


class Unmeasurable(RuntimeError):
    """Is raised where nothing can be measured here; the message says why."""


class TooLittleTime(Unmeasurable):
    """Is raised where what is left of the time does not suffice for a rung."""


@dataclass(frozen=True)
class Rung:
    """Records one comparison: of whole schedules of ``steps`` reference steps, by so many seeds and sets of
    processes."""

    steps: int
    replicates: int
    reference: str
    trials: Mapping[str, Trial]
    rows: Mapping[str, Row] = field(default_factory=dict, repr=False)

    def over(self, best: str, other: str, metric: str) -> Estimate | None:
        """Returns what ``best`` costs over another stack, paired; either may be the reference, whose cost over itself
        is 1. None where one of them was not measured."""
        if best == other:
            return Estimate(0.0)
        ours, theirs = (
            samples(self.rows[stack].known, [METRICS[metric]]).get(metric, {}) if stack in self.rows else {}
            for stack in (best, other)
        )
        if best == self.reference:
            ours = dict.fromkeys(theirs, 0.0)
        if other == self.reference:
            theirs = dict.fromkeys(ours, 0.0)
        return paired(ours, theirs, "measured")


@dataclass(frozen=True)
class MeasuredChoice:
    """Holds the rungs, the best stack of the last, and how long that took; ``busy``: cores that others used meanwhile;
    ``cut_short``: why the rungs end before that of several seeds, where they do."""

    reference: str
    rungs: tuple[Rung, ...]
    best: str
    seconds: float
    busy: float
    cut_short: str = ""


@dataclass
class Halving:
    """Runs one measuring. ``peaks``: ln of each stack's counted peak over the baseline's. ``expected``: ln of what its
    training is expected to take; after a rung, of what it took. ``folder``: where the reference's scaling curve may be
    known from."""

    setting: Setting
    goal: Goal
    reference: str
    peaks: Mapping[str, float]
    expected: dict[str, float]
    minutes: float
    folder: Path
    progress: Progress = silent
    lines: list[Line] = field(default_factory=list)
    start_s: float = field(default_factory=time.monotonic)

    def measure(self, finalists: Sequence[str], without: Callable[[str], Collection[str]]) -> MeasuredChoice:
        """Halves the finalists, and compares the best of them with what is left of it without each member.

        ``without``: what may be run of a stack without each of its members. Raises Unmeasurable.
        """
        busy = busy_cores()
        pace = self._pace()
        done: list[Rung] = []
        left, keeps, cut_short = list(finalists[:MOST]), rungs(min(MOST, len(finalists))), ""
        try:
            for number, keep in enumerate(keeps):
                ahead = len(keeps) - number + LAST_SHARE
                done.append(self._rung(left, 1, SHARES[min(number, len(SHARES) - 2)], pace, 1 / ahead))
                left = self._best(done[-1].trials.values(), keep)
                self.expected |= {stack: trial.time.log for stack, trial in done[-1].trials.items() if stack in left}
            last = list(dict.fromkeys([*left, *without(left[0])]))
            done.append(self._rung(last, REPLICATES, SHARES[-1], pace, 1.0))
        except TooLittleTime as too_little:
            if not done:
                raise
            cut_short = str(too_little)
        same = [self._same()] if self.reference in self.peaks else []
        (best,) = self._best([*same, *done[-1].trials.values()], 1)
        taken_s = time.monotonic() - self.start_s
        return MeasuredChoice(self.reference, tuple(done), best, taken_s, busy, cut_short)

    def _best(self, trials: Collection[Trial], keep: int) -> list[str]:
        """Returns the best of a rung. Raises Unmeasurable where all failed."""
        best = halved(self.goal, trials, keep)
        if not best:
            raise Unmeasurable("; ".join(f"{trial.stack}: {trial.failure}" for trial in trials))
        return best

    def _same(self) -> Trial:
        """Returns the reference beside itself."""
        exact = Estimate(0.0)
        return Trial(self.reference, exact, exact, exact, self.peaks[self.reference])

    # time -----------------------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        return 60 * self.minutes - (time.monotonic() - self.start_s)

    def _pace(self) -> Pace:
        """Tells how fast this machine is, by the reference's first steps. Raises Unmeasurable."""
        self.progress(0.0, f"time {self.reference}")
        timed = time_together(self.setting.but(steps=LEAST_STEPS), [self.reference], 0, Protocol(rounds=2))
        side = timed.contenders[0]
        if side.status != "ok" or not side.windows:
            raise Unmeasurable(f"{self.reference} does not run here: {side.status}: {side.reason}")
        window = side.windows[0]
        blocks = [seconds for both in window.block_s for seconds in both]
        step_s = sum(blocks) / len(blocks) / window.block_steps
        process_s = PROCESSES * ((side.setup_s or 0.0) + (side.warmup_s or 0.0))
        return Pace(step_s, process_s, max(0.0, timed.duration_s - sum(blocks) - process_s))

    def _steps(self, stacks: Sequence[str], replicates: int, share: float, pace: Pace, part: float) -> int:
        """Returns the steps of a rung that takes ``part`` of what is left, at most ``share`` of a whole run's.

        Raises TooLittleTime where those are too few to say anything.
        """
        weight = sum(math.exp(self.expected.get(stack, 0.0)) for stack in (self.reference, *stacks))
        sides = len(stacks) + 1
        blocks_s = weight * pace.step_s * Protocol(windows=FIFTHS).compressed_steps
        timed_s = replicates * (pace.set_s + sides * pace.process_s + blocks_s)
        a_step_s = weight * replicates * pace.step_s / cores()
        room_s = part * self.left_s - timed_s - sides * replicates * pace.process_s / cores()
        most = max(2, int(share * conditions_of(self.setting).steps))
        steps = min(most, int(room_s / a_step_s))
        if steps < min(LEAST_STEPS, most):
            raise TooLittleTime(
                f"a step takes {pace.step_s:.2g} s here and a set of processes {pace.set_s:.2g} s to start, so {sides} "
                f"stacks would train for {max(0, steps)} steps in the time that is left: give more --minutes"
            )
        return steps

    # evidence -------------------------------------------------------------------------------------------------------

    def _rung(self, stacks: Sequence[str], replicates: int, share: float, pace: Pace, part: float) -> Rung:
        others = [stack for stack in stacks if stack != self.reference]
        setting = self.setting.but(steps=self._steps(others, replicates, share, pace, part))
        sides = [self.reference, *others]
        low = 1 - self.left_s / (60 * self.minutes)
        step = portion(self.progress, max(0.0, low), min(1.0, low + part * (1 - low)))
        timing, learning = portion(step, 0.0, 0.5), portion(step, 0.5, 1.0)
        for replicate in range(replicates):
            timing(replicate / replicates, f"time {len(sides)} sides in lock-step, set {replicate + 1}")
            self.lines.append(time_together(setting, sides, replicate, Protocol(windows=FIFTHS)))
        jobs = [Job(setting=setting, stack=side, seed=seed) for seed in range(replicates) for side in sides]
        for _, learned in learn_all(jobs, progress=learning):
            self.lines.append(learned)
        rows = self._rows(setting, others)
        trials = {other: self._trial(other, rows.get(other)) for other in others}
        return Rung(setting.steps or 0, replicates, self.reference, trials, rows)

    def _rows(self, setting: Setting, stacks: Collection[str]) -> dict[str, Row]:
        """Returns the rung's rows, read off the reference's scaling curve where one is known."""
        wanted = conditions_of(setting)
        curve = [
            run
            for run in Store(self.folder).read()[0].learned
            if run.stack == BASELINE and run.conditions.family == wanted.family
        ]
        records = Records.of([*curve, *self.lines])
        rows = pairs(records, lambda _: self.reference, tuned=lambda _: False, wanted=stacks.__contains__)
        return {row.stack: row for row in rows if row.conditions.key == wanted.key and row.known.timed}

    def _trial(self, stack: str, row: Row | None) -> Trial:
        peak = self.peaks.get(stack, 0.0)
        failure = self._failure(stack)
        if row is None or failure:
            return Trial(stack, peak_log=peak, failure=failure or "nothing was measured of it")
        known = {name: _estimate(row, name) for name in TIMED}
        if known["whole_time"] is None or known["loss"] is None:
            return Trial(stack, peak_log=peak, failure=row.value("whole_time").reason or row.value("loss").reason)
        return Trial(stack, known["whole_time"], known["equivalent_budget"], known["loss"], peak)

    def _failure(self, stack: str) -> str:
        """Tells how the stack's latest run or timing ended, where not well."""
        ends = [
            side
            for line in self.lines
            for side in (line.contenders if isinstance(line, Timed) else [line] if isinstance(line, Learned) else [])
            if side.stack == stack and side.status != "ok"
        ]
        return f"{ends[-1].status}: {ends[-1].reason}" if ends else ""


def _estimate(row: Row, metric: str) -> Estimate | None:
    value = row.value(metric)
    if not value.number > 0:
        return None
    if value.log is None:
        return Estimate(math.log(value.number), source="at most" if value.at_most else "at least")
    return Estimate.of(value.log, "measured")
