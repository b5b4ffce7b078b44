"""Judges one try of many: a change of the working tree is kept, discarded, or left undecided, and the ledger knows.

What a try brings as evidence, by what it changed:

    an exact cost rose, or a run failed             discarded
    nothing that runs                               discarded
    training: losses of the first steps, or what    paired losses of seeds after whole runs, as an e-value
    a whole run of one seed ends with
    exact costs fell, and whole runs end equal      kept: that is no matter of chance
    code alone                                      votes of sets of processes for "faster", as an e-value

What is kept for its losses or its exact costs must not be surely slower for that: sets of processes vote on "slower"
before, as the speed gate has them. Counters that are no costs decide nothing.

Votes are those of the speed gate (:mod:`suite.guard.votes`) with the sides exchanged, at the level that the ledger
leaves (:mod:`suite.judge.many_tries`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from suite.guard import speed
from suite.guard.check import ExactComparison, Selection, exact_against
from suite.guard.findings import Finding
from suite.guard.ledger import Decision, EndedTry, Ledger, Try
from suite.guard.regression import item_of
from suite.guard.trees import TreeWorker, checked_out, top_of
from suite.guard.votes import FALSE_ALARMS, MISSES, Outcome, Rule, log_evidence
from suite.judge.many_tries import log_e_value
from suite.judge.statistics import median_interval
from suite.measure.provenance import Progress, part
from suite.process.child import ContenderFailed
from suite.record.job import Job
from suite.record.numerics import off_the_clock

FASTER = 0.05
FEWEST_SEEDS, MOST_SEEDS = 3, 24
STOPPING = ("failed", "regressed", "gone", "not comparable")


@dataclass(frozen=True)
class FasterRule(Rule):
    """Is the gate's rule with its sides exchanged: ``outcome`` is *slower* where the revision is slower by ``slower``,
    and so the working tree faster."""

    def outcome(self, d: Sequence[float]) -> Outcome:
        return super().outcome([-log_ratio for log_ratio in d])

    def log_evidence(self, d: Sequence[float]) -> float:
        """Returns ln of the e-value against "not faster": of the votes as they stand, where looking stopped."""
        return log_evidence([-log_ratio - self.half for log_ratio in d])


@dataclass(frozen=True)
class Tried:
    """Says what became of a try.

    Attributes:
        log_evidence: ln of its e-value; infinite where the change is exact.
        basis: what the evidence rests on; more: what it would take to decide, where it is undecided.
    """

    begun: Try
    decision: Decision
    log_evidence: float
    basis: str
    more: str
    findings: list[Finding]

    @property
    def sentence(self) -> str:
        """Says the decision, its evidence and the bar."""
        evidence = "exact" if math.isinf(self.log_evidence) else f"e-value {math.exp(min(self.log_evidence, 700)):.3g}"
        needed = f"{1 / self.begun.level:,.0f} needed at try {self.begun.number} after {self.begun.kept} kept"
        return f"{self.decision}: {self.basis} ({evidence}, {needed}){f'; {self.more}' if self.more else ''}"

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON; ``evidence`` is an e-value, None where the change is exact."""
        return {
            "try": self.begun.number,
            "decision": self.decision,
            "evidence": None if math.isinf(self.log_evidence) else math.exp(min(self.log_evidence, 700.0)),
            "needed": 1 / self.begun.level,
            "level": self.begun.level,
            "kept_before": self.begun.kept,
            "basis": self.basis,
            "more": self.more,
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class _Evidence:
    decision: Decision
    log: float
    basis: str
    more: str = ""


@dataclass(frozen=True)
class _TryAsked:
    """Says what is decided: the trees ``old`` and ``new``, at which level, and until when (on the monotonic clock)."""

    old: Path
    new: Path
    jobs: Sequence[Job]
    level: float
    faster: float
    end_s: float
    progress: Progress

    @property
    def minutes(self) -> float:
        """Returns the minutes that are left, at least a moment."""
        return max(0.1, (self.end_s - time.monotonic()) / 60)


def tried(
    revision: str, selection: Selection, ledger: Ledger, faster: float, minutes: float, progress: Progress
) -> Tried:
    """Tries the working tree against a revision, whose code is run, and writes the ledger. Raises LedgerError,
    RevisionError."""
    top = top_of(Path())
    end_s = time.monotonic() + 60 * minutes
    with checked_out(revision, top) as tree:  # a revision that is none is no try
        begun = ledger.begin(against=revision)
        exact = exact_against(tree, revision, top, selection, part(progress, 0, 4), True)
        evidence = of_exact(exact) or _of_runs(
            _TryAsked(tree, top, exact.changed, begun.level, faster, end_s, part(progress, 1, 4)), exact.findings
        )
    ledger.end(EndedTry(begun.number, evidence.decision, evidence.log, evidence.basis))
    return Tried(begun, evidence.decision, evidence.log, evidence.basis, evidence.more, exact.findings)


def of_exact(exact: ExactComparison) -> _Evidence | None:
    """Returns what exact numbers decide alone; None where whole runs have a say."""
    for finding in exact.findings:
        if finding.verdict in STOPPING:
            return _Evidence("discard", 0.0, f"{finding.item} {finding.verdict}: {finding.details}")
    return None if exact.changed else _Evidence("discard", 0.0, "nothing that runs was changed")


def training_changed(findings: Sequence[Finding]) -> bool:
    """Tells whether what training sees or gives differs; a counter that does says nothing of it."""
    return any(change.of_training for finding in findings for change in finding.changes)


def _of_runs(asked: _TryAsked, findings: Sequence[Finding]) -> _Evidence:
    """Decides by whole runs: by their losses where training changed, by exact costs where these fell, else by votes."""
    fell = [finding for finding in findings if any(change.is_cost for change in finding.changes)]
    try:
        with _workers(asked) as sides:
            before, after = _losses(sides, asked.jobs, seed=0)
            if training_changed(findings) or before != after:
                found = _by_losses(asked, sides, [_gain(before, after)])
            elif fell:
                costs = "; ".join(f"{finding.item}: {finding.details}" for finding in fell)
                found = _Evidence("keep", math.inf, f"exact costs fell and whole runs end equal: {costs}")
            else:
                found = None
    except ContenderFailed as failure:
        return _Evidence("discard", 0.0, f"a whole run {failure.status}: {failure}")
    if found is None:
        return _by_votes(asked)
    return _unless_slower(asked, found) if found.decision == "keep" else found


def decision_of(log_evidence: float, level: float, refuted: bool) -> Decision:
    """Returns *keep* where the e-value reaches 1 / ``level``, *discard* where what was hoped for is refuted."""
    return "keep" if log_evidence >= -math.log(level) else "discard" if refuted else "undecided"


def _timed_sets(asked: _TryAsked, rule: Rule) -> tuple[list[speed.TimedSet], _Evidence | None]:
    """Times both trees in turns until votes decide by the rule, or the time is over; with what ends a try where a
    side fails, or the machine sides with one."""
    coin = random.Random()
    fresh = partial(speed.session, asked.old, asked.new, coin)
    items = speed.time_sets(fresh, asked.jobs, rule, minutes=asked.minutes, coin=coin, progress=asked.progress)
    for item in items:
        if item.failure:
            return items, _Evidence("discard", 0.0, f"{item_of(item.job)} failed when timed: {item.failure}")
        if item.biased(rule):
            why = "the revision came out slower than itself"
            return items, _Evidence("undecided", 0.0, why, "try a quieter machine")
    return items, None


def _by_votes(asked: _TryAsked) -> _Evidence:
    """Decides by votes for "faster". The mean of the items' e-values is one."""
    rule = FasterRule(asked.faster, asked.level / len(asked.jobs), MISSES)
    items, ended = _timed_sets(asked, rule)
    if ended:
        return ended
    log = math.log(sum(math.exp(min(700.0, rule.log_evidence(item.d))) for item in items) / len(items))
    decision = decision_of(log, asked.level, all(rule.outcome(item.d) == "not slower" for item in items))
    basis = "; ".join(_timed(item) for item in items)
    more = max((_more(item, rule) for item in items), default="") if decision == "undecided" else ""
    return _Evidence(decision, log, basis, more)


def _unless_slower(asked: _TryAsked, found: _Evidence) -> _Evidence:
    """Returns what is kept for something else than its speed, unless a step of it is surely slower by what would be a
    speed-up; *undecided* where no set of processes could be timed."""
    rule = Rule(asked.faster, FALSE_ALARMS / len(asked.jobs), MISSES)
    items, ended = _timed_sets(asked, rule)
    if ended:
        return replace(ended, basis=f"{found.basis}; but {ended.basis}")
    basis = f"{found.basis}; {'; '.join(_timed(item) for item in items)}"
    if slower := [item_of(item.job) for item in items if rule.outcome(item.d) == "slower"]:
        return _Evidence("discard", 0.0, f"{basis}: surely slower ({', '.join(slower)})")
    if not all(item.d for item in items):
        return _Evidence("undecided", found.log, basis, "more --minutes, for its speed")
    return replace(found, basis=f"{basis}: not surely slower")


def _timed(item: speed.TimedSet) -> str:
    if not item.d:
        return f"{item_of(item.job)}: no set of processes was timed"
    cost = median_interval(item.d).ratio()
    return f"{item_of(item.job)}: step time {cost.estimate - 1:+.1%} over {len(item.d)} sets of processes"


def _more(item: speed.TimedSet, rule: FasterRule) -> str:
    """Says how many more sets like those seen would decide."""
    if not item.d:
        return "it takes more minutes for a first set"
    for n in range(len(item.d) + 1, speed.MOST_SETS + 1):
        if rule.outcome([item.d[at % len(item.d)] for at in range(n)]) != "cannot tell":
            minutes = math.ceil(n * item.seconds_a_set / 60)
            return f"{n - len(item.d)} more sets like these decide: --minutes {minutes}"
    return "sets like these never decide: a quieter machine, or a larger --faster"


LOSSES_SHARE = 0.6  # of the time that is left: then what is better must not be slower


def _by_losses(asked: _TryAsked, sides: Sequence[TreeWorker], gains: list[float]) -> _Evidence:
    """Trains both trees from the same seeds until the paired losses on test data decide, or there is no time for
    another seed; ``gains``: those of the first seeds. Training that changed must be better."""
    began_s = time.monotonic()
    end_s, longest_s = began_s + LOSSES_SHARE * 60 * asked.minutes, 0.0
    while len(gains) < MOST_SEEDS and time.monotonic() + longest_s < end_s:
        seed_s = time.monotonic()
        gains.append(_gain(*_losses(sides, asked.jobs, seed=len(gains))))
        longest_s = max(longest_s, time.monotonic() - seed_s)
        asked.progress(min(1.0, (time.monotonic() - began_s) / (end_s - began_s)), f"trained seed {len(gains)}")
        if len(gains) >= FEWEST_SEEDS and _decided(gains, asked.level) != "undecided":
            break
    decision = _decided(gains, asked.level)
    basis = f"training changed: test loss {math.expm1(-sum(gains) / len(gains)):+.2%} over {len(gains)} seeds"
    more = "more --minutes for further seeds" if decision == "undecided" else ""
    return _Evidence(decision, log_e_value(gains), basis, more)


def _decided(gains: Sequence[float], level: float) -> Decision:
    worse = log_e_value([-gain for gain in gains]) >= -math.log(MISSES)
    return decision_of(log_e_value(gains), level, worse)


@contextmanager
def _workers(asked: _TryAsked) -> Iterator[list[TreeWorker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(TreeWorker(tree)) for tree in (asked.old, asked.new)]


def _losses(sides: Sequence[TreeWorker], jobs: Sequence[Job], seed: int) -> tuple[list[float], list[float]]:
    """Returns the test losses of whole runs of the jobs: the revision's and the working tree's."""
    numerics = off_the_clock()

    def losses(side: TreeWorker) -> list[float]:
        seeded = [job.model_copy(update={"seed": seed, "setting": job.setting.but(steps=None)}) for job in jobs]
        return [side.ask("learn", job=job.model_dump(), numerics=numerics) for job in seeded]

    with ThreadPoolExecutor(2) as pool:
        old, new = pool.map(losses, sides)
    return old, new


def _gain(before: Sequence[float], after: Sequence[float]) -> float:
    """Returns ln(revision's loss / working tree's), the mean over jobs."""
    return sum(math.log(old / new) for old, new in zip(before, after, strict=True)) / len(before)
