"""Judges one try of many: a change of the working tree is kept, discarded, or left undecided, and the ledger knows.

What a try brings as evidence, by what it changed:

    an exact cost rose, or a run failed     discarded
    nothing that runs                       discarded
    exact costs fell, training is equal     kept: that is no matter of chance
    training                                paired losses of seeds after whole runs, as an e-value
    code alone                              votes of sets of processes for "faster", as an e-value

Votes are those of the speed gate (:mod:`suite.guard.votes`) with the sides exchanged, at the level that the ledger
leaves (:mod:`suite.judge.many_tries`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite.guard import speed
from suite.guard.check import ExactComparison, Selection, exact_against
from suite.guard.findings import Finding
from suite.guard.ledger import Decision, EndedTry, Ledger, Try
from suite.guard.regression import item_of
from suite.guard.trees import TreeWorker, checked_out, top_of
from suite.guard.votes import MISSES, Outcome, Rule, log_evidence
from suite.judge.many_tries import log_e_value
from suite.judge.statistics import median_interval
from suite.measure.provenance import Progress, part
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
        evidence = of_exact(exact)
        if evidence is None:
            rest = max(0.1, (end_s - time.monotonic()) / 60)
            judge = partial(_by_losses if _training_changed(exact) else _by_votes, tree, top, exact.changed)
            evidence = judge(begun.level, faster, rest, part(progress, 1, 4))
    ledger.end(EndedTry(begun.number, evidence.decision, evidence.log, evidence.basis))
    return Tried(begun, evidence.decision, evidence.log, evidence.basis, evidence.more, exact.findings)


def of_exact(exact: ExactComparison) -> _Evidence | None:
    """Returns what exact numbers decide; None where chance has a say."""
    for finding in exact.findings:
        if finding.verdict in STOPPING:
            return _Evidence("discard", 0.0, f"{finding.item} {finding.verdict}: {finding.details}")
    if _training_changed(exact):
        return None
    if better := [finding for finding in exact.findings if finding.verdict == "improved"]:
        return _Evidence("keep", math.inf, "; ".join(f"{finding.item}: {finding.details}" for finding in better))
    return None if exact.changed else _Evidence("discard", 0.0, "nothing that runs was changed")


def _training_changed(exact: ExactComparison) -> bool:
    return any(finding.verdict == "changed" for finding in exact.findings)


def decision_of(log_evidence: float, level: float, refuted: bool) -> Decision:
    """Returns *keep* where the e-value reaches 1 / ``level``, *discard* where what was hoped for is refuted."""
    return "keep" if log_evidence >= -math.log(level) else "discard" if refuted else "undecided"


def _by_votes(
    tree: Path, top: Path, jobs: Sequence[Job], level: float, faster: float, minutes: float, progress: Progress
) -> _Evidence:
    """Times both trees in turns until votes decide. The mean of the items' e-values is one."""
    coin = random.Random()
    rule = FasterRule(faster, level / len(jobs), MISSES)
    items = speed.time_sets(
        partial(speed.session, tree, top, coin), jobs, rule, minutes=minutes, coin=coin, progress=progress
    )
    for item in items:
        if item.failure:
            return _Evidence("discard", 0.0, f"{item_of(item.job)} failed when timed: {item.failure}")
        if item.biased(rule):
            return _Evidence("undecided", 0.0, "the revision came out slower than itself", "try a quieter machine")
    log = math.log(sum(math.exp(min(700.0, rule.log_evidence(item.d))) for item in items) / len(items))
    decision = decision_of(log, level, all(rule.outcome(item.d) == "not slower" for item in items))
    basis = "; ".join(_timed(item) for item in items)
    more = max((_more(item, rule) for item in items), default="") if decision == "undecided" else ""
    return _Evidence(decision, log, basis, more)


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


def _by_losses(
    tree: Path, top: Path, jobs: Sequence[Job], level: float, faster: float, minutes: float, progress: Progress
) -> _Evidence:
    """Trains both trees from the same seeds until the paired losses on test data decide, or there is no time for
    another seed. ``faster`` has no say: training that changed must be better."""
    end_s, longest_s = time.monotonic() + 60 * minutes, 0.0
    gains: list[float] = []
    with ExitStack() as stack:
        sides = [stack.enter_context(TreeWorker(side)) for side in (tree, top)]
        while len(gains) < MOST_SEEDS and time.monotonic() + longest_s < end_s:
            began_s = time.monotonic()
            gains.append(_gain(sides, jobs, seed=len(gains)))
            longest_s = max(longest_s, time.monotonic() - began_s)
            progress(min(1.0, 1 - (end_s - time.monotonic()) / (60 * minutes)), f"trained seed {len(gains)}")
            if len(gains) >= FEWEST_SEEDS and _sure(gains, level):
                break
    log, against = log_e_value(gains), log_e_value([-gain for gain in gains])
    decision = decision_of(log, level, against >= -math.log(MISSES))
    mean = sum(gains) / len(gains) if gains else 0.0
    basis = f"training changed: test loss {math.expm1(-mean):+.2%} over {len(gains)} seeds"
    return _Evidence(decision, log, basis, "more --minutes for further seeds" if decision == "undecided" else "")


def _sure(gains: Sequence[float], level: float) -> bool:
    return decision_of(log_e_value(gains), level, log_e_value([-gain for gain in gains]) >= -math.log(MISSES)) != (
        "undecided"
    )


def _gain(sides: Sequence[TreeWorker], jobs: Sequence[Job], seed: int) -> float:
    """Returns ln(revision's loss / working tree's), the mean over jobs."""
    numerics = off_the_clock()

    def losses(side: TreeWorker) -> list[float]:
        seeded = [job.model_copy(update={"seed": seed, "setting": job.setting.but(steps=None)}) for job in jobs]
        return [side.ask("learn", job=job.model_dump(), numerics=numerics) for job in seeded]

    with ThreadPoolExecutor(2) as pool:
        old, new = pool.map(losses, sides)
    return sum(math.log(before / after) for before, after in zip(old, new, strict=True)) / len(jobs)
