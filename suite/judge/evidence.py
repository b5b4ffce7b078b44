"""The one index of evidence, which says what counts: the plan of ``run`` and the rows of the board both ask it.

Of several records of one thing the best counts: one of the installed code, then one that is no failure that another
try may mend, then ours rather than one from elsewhere, then the newest. Evidence of other code is unverified, not
wrong: it stands where there is nothing better.

Curves travel. Two runs may be compared where their arithmetic is one and repeats to the bit, so a pair's curves are of
one arithmetic, whichever machine learned them: of the one that has most seeds which hold, since an interval is as
good as its seeds, and of equals this machine's own. Where rates are to be tuned, one whose searches have ended comes
first. Counts are exact and travel, too; a machine's own come first. Times never travel: they are of one machine, and
those that were merged from elsewhere of none that is here, whatever they name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from suite.entries.sources import CodeOf, installed_code
from suite.judge import tuning
from suite.judge.known import LearnedPair, completed
from suite.judge.ruler import Ruler, ruler_of
from suite.record.job import BASELINE
from suite.record.schema import (
    ENVIRONMENT,
    TIMING_PROTOCOL,
    Code,
    Conditions,
    Counted,
    Ended,
    Learned,
    Line,
    Renewal,
    Status,
    Timed,
    Trained,
)
from suite.record.store import Records

TRANSIENT: tuple[Status, ...] = ("out_of_memory", "timeout", "hung", "crashed")
TRIES = 3  # then a failure is no accident
TOLD: tuple[Status, ...] = ("ok", "diverged")  # how runs end that tell something of a technique

# code ---------------------------------------------------------------------------------------------------------------


class OfARun(Protocol):
    """What a run of a stack under some conditions made, and the code that it loaded."""

    @property
    def conditions(self) -> Conditions: ...
    @property
    def stack(self) -> str: ...
    @property
    def code(self) -> Code: ...


@dataclass(frozen=True)
class Currency:
    """Whether evidence is of the code that is installed, or was renewed under it. ``renewed``: by source, empty for
    ours: what was renewed here holds for all evidence, what was renewed elsewhere for that of its own source."""

    code_of: CodeOf
    renewed: Mapping[str, Mapping[tuple[str, str, str], set[str]]]
    _known: dict[tuple[Conditions, str], Code | None] = field(default_factory=dict)

    @classmethod
    def of(cls, renewals: Iterable[Renewal], code_of: CodeOf = installed_code) -> Currency:
        """What holds for two codes each holds for both: renewals follow each other, and go back."""
        by_source: dict[str, list[Renewal]] = {"": []}
        for renewal in renewals:
            by_source.setdefault(renewal.source, []).append(renewal)
        ours = by_source[""]
        return cls(
            code_of, {source: _alike([*ours, *theirs] if source else ours) for source, theirs in by_source.items()}
        )

    def _now(self, conditions: Conditions, stack: str) -> Code | None:
        """The installed code; asked once for each of the many records of a job."""
        if (conditions, stack) not in self._known:
            self._known[conditions, stack] = self.code_of(conditions, stack)
        return self._known[conditions, stack]

    def has(self, evidence: OfARun) -> bool:
        """Whether it is of the installed code."""
        now = self._now(evidence.conditions, evidence.stack)
        if now is None:
            return False
        if isinstance(evidence, Counted):
            return evidence.code.counts == now.counts
        return self.same(evidence, now.trajectory)

    def same(self, run: OfARun, trajectory: str) -> bool:
        """Whether the run's code and that of this trajectory hash are the same or compute the same."""
        old = run.code.trajectory
        renewed = self.renewed.get(getattr(run, "source", "")) or self.renewed.get("", {})
        return old == trajectory or trajectory in renewed.get((run.conditions.family, run.stack, old), ())

    def has_side(self, timed: Timed, side: Ended) -> bool:
        """Whether a side of a timing is of the installed code, and timed as it is now."""
        now = self._now(timed.conditions, side.stack)
        return now is not None and timed.protocol == TIMING_PROTOCOL and side.code.trajectory == now.trajectory


def _alike(renewals: Iterable[Renewal]) -> dict[tuple[str, str, str], set[str]]:
    """(family, stack, code) -> all codes that compute the same."""
    same: dict[tuple[str, str, str], set[str]] = {}
    for renewal in renewals:
        old, new = ((renewal.family, renewal.stack, code) for code in (renewal.old, renewal.new))
        joined = same.get(old, {renewal.old}) | same.get(new, {renewal.new})
        same |= dict.fromkeys(((renewal.family, renewal.stack, code) for code in joined), joined)
    return same


def mendable(records: Records) -> frozenset[str]:
    """The ids of failures that another try may mend: of the machine, of its load, or killed, and not TRIES times."""
    tries: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for line in records.lines:
        if tried := _tried(line):
            tries[tried].append(line.id)
    return frozenset(id for ids in tries.values() if len(ids) < TRIES for id in ids)


def _tried(line: Line) -> tuple[object, ...]:
    """What was tried, where the line is of a failure that may pass; nothing where it is not."""
    if isinstance(line, Timed):
        if any(map(_may_pass, line.contenders)):
            sides = [(side.stack, side.code.trajectory) for side in line.contenders]
            return line.kind, line.conditions.key, line.home.key, line.replicate, *sides
    elif isinstance(line, Counted | Trained) and _may_pass(line):
        seed = line.seed if isinstance(line, Trained) else None
        return line.kind, line.conditions.key, line.home.key, line.stack, line.code.trajectory, seed
    return ()


def _may_pass(run: Ended) -> bool:
    return run.status in TRANSIENT or (run.status == "failed" and run.reason.startswith(ENVIRONMENT))


# the index ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairAt:
    """A stack beside its reference under one set of conditions, on one machine."""

    stack: str
    reference: str
    conditions: Conditions
    machine: str

    @property
    def sides(self) -> tuple[str, str]:
        """The reference's stack and the contender's."""
        return self.reference, self.stack


@dataclass(frozen=True)
class LearnedPairs:
    """A pair's curves, of one arithmetic.

    Attributes:
        bits: where they repeat to the bit; empty where nothing was learned.
        pairs: both sides' runs by seed, failures among them.
        known: those of ``pairs`` that hold: of the installed code, and no failure that another try may mend.
        rates: what tuning chose so far for the reference and the contender; None where it did not.
        searched: whether no search for a rate goes on, or is to begin.
    """

    bits: str = ""
    pairs: tuple[LearnedPair, ...] = ()
    known: tuple[LearnedPair, ...] = ()
    rates: tuple[tuning.Choice, tuning.Choice] | None = None
    searched: bool = False


class EvidenceIndex:
    """The evidence of some records, by what it is of.

    ``tried``: ids of failures that are not to be tried again now.
    """

    def __init__(self, records: Records, currency: Currency, tried: Collection[str] = ()) -> None:
        self.records, self.currency = records, currency
        self._mendable = mendable(records) - {*tried}
        self.learned: dict[tuple[str, str], dict[str, dict[int, list[Learned]]]] = {}
        self.counted: dict[tuple[str, str], list[Counted]] = defaultdict(list)
        self.timed: dict[tuple[str, str, str], dict[str, list[tuple[Timed, int]]]] = {}
        self.witnesses = [witness for witness in records.witnesses if witness.id not in self._mendable]
        self._learners: dict[str, set[str]] = defaultdict(set)
        self._runs: dict[tuple[str, str, str], dict[int, Learned]] = {}
        self._rulers: dict[tuple[str, float, int], Ruler | None] = {}
        for run in records.learned:
            of_bits = self.learned.setdefault((run.conditions.key, run.stack), {}).setdefault(run.bits, {})
            of_bits.setdefault(run.seed, []).append(run)
            self._learners[run.bits].add(run.home.key)
        for count in records.counted:
            self.counted[count.conditions.key, count.stack].append(count)
        for timing in records.timed:
            for index, side in enumerate(timing.contenders[1:], 1):
                at = timing.conditions.key, timing.reference.stack, side.stack
                self.timed.setdefault(at, {}).setdefault(timing.home.key, []).append((timing, index))

    def holds(self, run: Counted | Learned) -> bool:
        """Whether a run is of the installed code, and no failure that another try may mend."""
        return run.id not in self._mendable and self.currency.has(run)

    def holds_between(self, timing: Timed, sides: Iterable[int]) -> bool:
        """Whether these sides of a timing are of the installed code, and none a failure that another try may mend."""
        ended = [timing.contenders[side] for side in sides]
        sound = timing.id not in self._mendable or not any(map(_may_pass, ended))
        return sound and all(self.currency.has_side(timing, side) for side in ended)

    def _goodness(self, run: Counted | Learned) -> tuple[bool, bool, bool, str]:
        return self.currency.has(run), run.id not in self._mendable, not run.source, run.started

    def _best(self, runs: Sequence[Learned]) -> Learned:
        return runs[0] if len(runs) == 1 else max(runs, key=self._goodness)

    # counted --------------------------------------------------------------------------------------------------------

    def count(self, key: str, stack: str, machine: str) -> Counted | None:
        """The counts of a stack that a machine goes by."""

        def goodness(count: Counted) -> tuple[bool, bool, bool, bool, str]:
            current, sound, ours, started = self._goodness(count)
            return current, sound, count.home.key == machine, ours, started

        return max(self.counted.get((key, stack), ()), key=goodness, default=None)

    # learned --------------------------------------------------------------------------------------------------------

    def runs(self, key: str, stack: str, bits: str) -> Mapping[int, Learned]:
        """The best run of each seed under an arithmetic."""
        if (key, stack, bits) not in self._runs:
            by_seed = self.learned.get((key, stack), {}).get(bits, {})
            self._runs[key, stack, bits] = {seed: self._best(runs) for seed, runs in by_seed.items()}
        return self._runs[key, stack, bits]

    def known_runs(self, key: str, stack: str, bits: str) -> Mapping[int, Learned]:
        """The runs of :meth:`runs` that hold."""
        return {seed: run for seed, run in self.runs(key, stack, bits).items() if self.holds(run)}

    def attempts(self, key: str, stack: str, seed: int, wanted: Callable[[str], bool]) -> list[Learned]:
        """All runs of a seed under the arithmetics that are ``wanted``, but failures that another try may mend."""
        by_bits = self.learned.get((key, stack), {})
        runs = [run for bits, by_seed in by_bits.items() if wanted(bits) for run in by_seed.get(seed, ())]
        return [run for run in runs if run.id not in self._mendable]

    def learned_pairs(self, at: PairAt, to_tune: bool) -> LearnedPairs:
        """The curves that count of a pair. ``to_tune``: each side's at the rate that its search chose, where the
        conditions leave that open."""

        def goodness(known: LearnedPairs) -> tuple[bool, int, int, int, bool, str]:
            told = sum(all(side.status in TOLD for side in pair.sides) for pair in known.known)
            own = at.machine in self._learners[known.bits]
            return known.searched, told, len(known.known), len(known.pairs), own, known.bits

        return max((self._of_bits(at, bits, to_tune) for bits in self._learners), key=goodness, default=LearnedPairs())

    def _of_bits(self, at: PairAt, bits: str, to_tune: bool) -> LearnedPairs:
        rates, searched, keys = None, True, [at.conditions.key, at.conditions.key]
        if to_tune and at.conditions.rate == 1:
            trials = [self._trials.get((keys[0], stack, bits), {}) for stack in at.sides]
            theirs, ours = (tuning.chosen(tuning.losses_of(self._best_trials(each))) for each in trials)
            if theirs and ours:
                rates = theirs, ours
                keys = [at.conditions.model_copy(update={"rate": choice.rate}).key for choice in rates]
            searched = not any(tuning.lacking(self.losses(at.conditions.key, stack, bits)) for stack in at.sides)
        sides = [(key, stack, bits) for key, stack in zip(keys, at.sides, strict=True)]
        every, known = ([of(*side) for side in sides] for of in (self.runs, self.known_runs))
        whole = {**completed(*every), **completed(*known)}
        pairs = {seed: self._pair(every[0][seed], whole[seed]) for seed in sorted(every[0].keys() & whole.keys())}
        holding = known[0].keys() & completed(*known).keys()
        return LearnedPairs(
            bits,
            tuple(pairs.values()),
            tuple(pair for seed, pair in pairs.items() if seed in holding),
            rates,
            searched,
        )

    def losses(self, key: str, stack: str, bits: str) -> dict[tuning.Trial, float]:
        """The losses by which a stack's rate is searched for, of runs that hold; ``key`` is of the rate 1."""
        trials = self._best_trials(self._trials.get((key, stack, bits), {}))
        return tuning.losses_of({trial: run for trial, run in trials.items() if self.holds(run)})

    def _best_trials(self, trials: Mapping[tuning.Trial, Sequence[Learned]]) -> dict[tuning.Trial, Learned]:
        return {trial: self._best(runs) for trial, runs in trials.items()}

    @cached_property
    def _trials(self) -> Mapping[tuple[str, str, str], Mapping[tuning.Trial, Sequence[Learned]]]:
        """The runs that a search for a rate may have made, by the key of the rate 1, stack and bits."""
        index: dict[tuple[str, str, str], dict[tuning.Trial, list[Learned]]] = {}
        for run in self.records.learned:
            if run.seed in tuning.SEEDS:
                key = run.conditions.model_copy(update={"rate": 1.0}).key
                trials = index.setdefault((key, run.stack, run.bits), {})
                trials.setdefault((run.conditions.rate, run.seed), []).append(run)
        return index

    def _pair(self, reference: Learned, contender: Learned) -> LearnedPair:
        """The two runs of a seed, and those of the reference's trajectory that measured what the contender did."""
        at = reference.conditions.key, reference.bits, reference.trajectory_sha256
        alike = [run for stack, run in self._alike.get(at, {}).items() if stack != reference.stack]
        return LearnedPair(
            reference, contender, tuple(run for run in alike if run.probes.keys() & contender.probes.keys())
        )

    def is_twin(self, key: str, stack: str, of: str) -> bool:
        """Whether the runs of a stack had the other's trajectories: they measure the other, and are no contender."""
        had = [
            stack in self._alike.get((key, bits, theirs.trajectory_sha256), ())
            for bits, runs in self.learned.get((key, stack), {}).items()
            for seed in runs
            if (theirs := self.runs(key, of, bits).get(seed))
        ]
        return bool(had) and all(had)

    @cached_property
    def _alike(self) -> Mapping[tuple[str, str, str], Mapping[str, Learned]]:
        """The best run of each stack that had a trajectory, by its conditions and bits."""
        alike: dict[tuple[str, str, str], dict[str, list[Learned]]] = {}
        for run in self.records.learned:
            if run.status == "ok" and run.trajectory_sha256:
                at = run.conditions.key, run.bits, run.trajectory_sha256
                alike.setdefault(at, {}).setdefault(run.stack, []).append(run)
        return {at: {stack: self._best(runs) for stack, runs in stacks.items()} for at, stacks in alike.items()}

    def ruler(self, conditions: Conditions, rate: float) -> Ruler | None:
        """The reference's scaling curve at a learning rate: ours where there is one, of the bits that have most."""
        key = conditions.family, rate, conditions.steps
        if key not in self._rulers:
            known = [
                (not all(run.source for run in runs), ruler)
                for runs in self._curves.get((conditions.family, rate), {}).values()
                if (ruler := ruler_of(sorted(runs, key=self._goodness), conditions.steps))
            ]
            best = max(known, key=lambda candidate: (candidate[0], candidate[1].losses.size), default=None)
            self._rulers[key] = best[1] if best else None
        return self._rulers[key]

    @cached_property
    def _curves(self) -> Mapping[tuple[str, float], Mapping[str, list[Learned]]]:
        """The baseline's runs of all lengths by family and rate, then by their bits."""
        curves: dict[tuple[str, float], dict[str, list[Learned]]] = {}
        for run in self.records.learned:
            if run.stack == BASELINE:
                of_bits = curves.setdefault((run.conditions.family, run.conditions.rate), {})
                of_bits.setdefault(run.bits, []).append(run)
        return curves

    # timed ----------------------------------------------------------------------------------------------------------

    def timings(self, at: PairAt, windows: int) -> list[tuple[Timed, int]]:
        """The best timing of each set of processes on the machine, and which contender of it this is: of those that
        show as many parts of a run as ``windows``, or fail to."""

        def goodness(known: tuple[Timed, int]) -> tuple[bool, bool, bool, str]:
            timing, index = known
            shown = timing.windows_of(index) > 0
            return self.holds_between(timing, (0, index)), shown, not timing.source, timing.started

        sets: dict[tuple[int, int], list[tuple[Timed, int]]] = {}
        for timing, index in self.timed.get((at.conditions.key, *at.sides), {}).get(at.machine, ()):
            if not 0 < timing.windows_of(index) < windows:
                twin = sum(other.stack == at.stack for other in timing.contenders[1:index])
                sets.setdefault((timing.replicate, twin), []).append((timing, index))
        return [max(known, key=goodness) for _, known in sorted(sets.items())]
