"""Views over evidence: every pair (reference, contender) as one row, with its failures, ratios and intervals.

Pure functions of records. Timings count on their own machine only, and those that were merged from elsewhere beside
none that were made here, whatever machine they name. What was learned and counted travels: a row takes
its machine's own where there is some, else another's, and says whose. Evidence of other code is unverified, not wrong:
it stands where there is nothing better, and the row says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from suite.entries.card import CardError
from suite.entries.catalogue import activity_probes, reference_of, tunes
from suite.entries.sources import CodeOf, installed_code
from suite.judge import tuning
from suite.judge.known import Known, LearnedPair, TimedPair, completed, timed_pair
from suite.judge.metrics import METRICS, MetricValue, Priors, metric_of, priors, unavailable, values
from suite.judge.ruler import Ruler, ruler_of
from suite.judge.sound import Failing, Piece, from_sound, pieces_of, without
from suite.judge.statistics import (
    QUALITY_TOLERANCE,
    Interval,
    detectable_effect,
    moderated_interval,
    replicate_interval,
)
from suite.judge.verdicts import NOT_EXERCISED
from suite.judge.versions import installed_version
from suite.record.job import BASELINE, Setting
from suite.record.machine import fingerprint
from suite.record.schema import (
    TIMING_PROTOCOL,
    Code,
    Conditions,
    Counted,
    Ended,
    Learned,
    Machine,
    Renewal,
    Status,
    Timed,
    stacks_of,
    windows_of,
)
from suite.record.store import NoRecord, Records

HIDDEN_COST = 0.02  # a mean this much above the medians, beyond its interval, is worth a note
VersionOf = Callable[[str], int | None]
ActiveOf = Callable[[str], Sequence[str]]
FEWEST_TIMED = 2  # sets of processes for an interval of a time
EXACT = "exact"  # the method of an interval without width
WORTH_SEEING = 0.05  # a change of the headline that a row should be able to see


@dataclass(frozen=True)
class Failure:
    """A run that gives no numbers. ``stack`` is the reference or the contender, whichever failed; ``replicate`` the
    seed of what should have been learned, the number of what should have been timed, None of a count."""

    kind: str
    replicate: int | None
    stack: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Row:
    """One contender against one reference under one set of conditions.

    Attributes:
        machine: where it was timed, else where it was learned or counted.
        metrics: by their names in the registry (:mod:`suite.judge.metrics`).
        setup: what the set-up takes beyond the reference's, in reference steps.
        learned_on: the machines that learned the curves; empty where there are none.
        detectable_effect: of the time to the same quality: the log ratio that this row had the power (80 %) to see.
        unverified: kinds of evidence whose code has changed since; none of an older version, which is named instead.
        tuned: the choices of the rates of the reference and the contender; None where they were not tuned.
        to_tune: whether a card asks for that.
        newer_version: of the baseline, installed or in other records; None where the row is of the newest.
        inactive: why nothing of the technique took part in what was learned; empty where something did, or nobody
            knows.
    """

    stack: str
    reference: str
    conditions: Conditions
    machine: Machine
    known: Known
    failures: tuple[Failure, ...]
    metrics: Mapping[str, MetricValue]
    setup: Interval | None
    probes: Mapping[str, Interval]
    newest: str  # start of the newest evidence, ISO 8601
    records: tuple[str, ...]
    learned_on: str
    detectable_effect: float
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    tuned: tuple[tuning.Choice, tuning.Choice] | None = None
    to_tune: bool = False
    newer_version: int | None = None
    inactive: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of what was learned."""
        return tuple(pair.seed for pair in self.known.learned)

    @property
    def tuning_open(self) -> bool:
        """Whether a rate that was to be tuned is not bracketed yet."""
        return self.to_tune and not (self.tuned and all(side.settled for side in self.tuned))

    @property
    def split_over(self) -> int:
        """The ranks that share what one process of the reference does, and are counted one by one; else 1."""
        reference, contender = self.ranks
        return contender if contender > reference else 1

    @property
    def ranks(self) -> tuple[int, int]:
        """The ranks of the reference and of the contender; each has as many cores as the conditions have threads, or a
        GPU."""
        reference, contender = (
            max((point.counters.ranks for point in side.points), default=1) if side else 1
            for side in self.known.counted
        )
        return reference, contender

    def value(self, metric: str) -> MetricValue:
        return self.metrics.get(metric, unavailable("not measured"))

    @property
    def failed(self) -> bool:
        """Whether nothing was learned, timed or counted of it."""
        return not (self.known.learned or self.known.timed or all(self.known.counted))

    @property
    def board(self) -> tuple[str, str, str]:
        """The key of the row's board: rows with the same key may be ranked together."""
        return self.conditions.key, self.machine.key, self.reference


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


# pooling ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A pair under one set of conditions, on one machine."""

    stack: str
    reference: str
    key: str
    machine: str


class _Pool:
    """The evidence, indexed for rows."""

    def __init__(self, records: Records, currency: Currency, version_of: VersionOf) -> None:
        self.currency = currency
        self.version_of = version_of
        self.newest: dict[str, int] = {}  # version in the records, by baseline
        self.conditions: dict[str, Conditions] = {}
        self.machines: dict[str, Machine] = {}
        self.learned: dict[tuple[str, str], dict[str, dict[int, Learned]]] = defaultdict(lambda: defaultdict(dict))
        self.trials: dict[tuple[str, str, str], dict[tuning.Trial, Learned]] = defaultdict(dict)
        self.counted: dict[tuple[str, str], dict[str, Counted]] = defaultdict(dict)
        self.timed: dict[tuple[str, str, str], dict[str, dict[tuple[int, int], tuple[Timed, int]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self.alike: dict[tuple[str, str, str], dict[str, Learned]] = defaultdict(dict)
        self.curves: dict[tuple[str, float], list[Learned]] = defaultdict(list)
        self._rulers: dict[tuple[str, float, int], Ruler | None] = {}
        self.learners: dict[str, set[str]] = defaultdict(set)  # by where bits repeat, the machines that learned there
        self.failing: list[Failing] = []
        for piece in pieces_of(records):
            try:
                self._admit(piece)
            except Exception as error:  # of one record, whatever it holds; the others have their rows
                self.failing.append(Failing([piece], [piece], error))
        if self.failing:
            records = without(records, {culprit.id for failing in self.failing for culprit in failing.pieces})
        for learned in _better_last(records.learned, currency.has):
            c = learned.conditions
            self.learners[learned.bits].add(learned.place.key)
            self.learned[c.key, learned.stack][learned.bits][learned.seed] = learned
            if learned.status == "ok" and learned.trajectory_sha256:
                self.alike[c.key, learned.bits, learned.trajectory_sha256][learned.stack] = learned
            if learned.seed in tuning.SEEDS:
                own = c.model_copy(update={"rate": 1.0}).key
                self.trials[own, learned.stack, learned.bits][c.rate, learned.seed] = learned
            if learned.stack == BASELINE:
                self.curves[c.family, c.rate].append(learned)
        for counted in _better_last(records.counted, currency.has):
            self.counted[counted.conditions.key, counted.stack][counted.place.key] = counted
        for timed in _better_last(records.timed, lambda timing: currency.has_side(timing, timing.reference)):
            for index, side in enumerate(timed.contenders[1:], 1):
                twin = sum(other.stack == side.stack for other in timed.contenders[1:index])
                at = timed.conditions.key, timed.reference.stack, side.stack
                self.timed[at][timed.place.key][timed.replicate, twin] = (timed, index)

    def _admit(self, piece: Piece) -> None:
        """Takes what a record says of itself."""
        place, c = piece.place, piece.conditions
        _ = self.currency.has_side(piece, piece.reference) if isinstance(piece, Timed) else self.currency.has(piece)
        self.conditions[c.key] = c
        self.newest[c.baseline] = max(c.baseline_version, self.newest.get(c.baseline, c.baseline_version))
        self.machines[place.key] = place

    def newer_version(self, conditions: Conditions) -> int | None:
        """The newest version of the baseline, where it is newer than that of the conditions."""
        newest = max(self.newest[conditions.baseline], self.version_of(conditions.baseline) or 0)
        return newest if newest > conditions.baseline_version else None

    def ruler(self, conditions: Conditions, rate: float) -> Ruler | None:
        """The reference's scaling curve at a learning rate: ours where there is one, of the bits that have most."""
        key = conditions.family, rate, conditions.steps
        if key not in self._rulers:
            by_bits: dict[str, list[Learned]] = defaultdict(list)
            for run in self.curves.get((conditions.family, rate), ()):
                by_bits[run.bits].append(run)
            candidates = [
                (not all(member.source for member in learned), ruler_of(learned, conditions.steps))
                for learned in by_bits.values()
            ]
            known = [(ours, ruler) for ours, ruler in candidates if ruler]
            best = max(known, key=lambda candidate: (candidate[0], candidate[1].losses.size), default=None)
            self._rulers[key] = best[1] if best else None
        return self._rulers[key]

    def choice(self, key: str, stack: str, bits: str) -> tuning.Choice | None:
        """What tuning chose so far; None where it has not begun."""
        if self.conditions[key].rate != 1:
            return None
        return tuning.chosen(tuning.losses_of(self.trials[key, stack, bits]))

    def runs(self, key: str, stack: str, bits: str, rate: float) -> dict[int, Learned]:
        """The runs by seed, of the conditions with another rate."""
        c = self.conditions[key]
        at = key if rate == c.rate else c.model_copy(update={"rate": rate}).key
        return self.learned[at, stack].get(bits, {})

    def is_twin(self, key: str, stack: str, of: str) -> bool:
        """Whether the runs of a stack had the other's trajectories: they measure the other, and are no contender."""
        known = self.learned.get((key, of), {})
        had = [
            stack in self.alike.get((key, bits, theirs.trajectory_sha256), ())
            for bits, runs in self.learned.get((key, stack), {}).items()
            for seed in runs
            if (theirs := known.get(bits, {}).get(seed))
        ]
        return bool(had) and all(had)

    def pair(self, reference: Learned, contender: Learned) -> LearnedPair:
        """The two runs of a seed, and those of the reference's trajectory that measured what the contender did."""
        at = reference.conditions.key, reference.bits, reference.trajectory_sha256
        alike = [run for stack, run in self.alike[at].items() if stack != reference.stack]
        twins = (run for run in alike if run.probes.keys() & contender.probes.keys())
        return LearnedPair(reference, contender, tuple(twins))


def _better_last(evidence: Sequence[Any], current: Callable[[Any], bool]) -> list[Any]:
    """Current evidence after other, ours after that of others, newer after older: what comes last is kept."""
    return sorted(evidence, key=lambda piece: (current(piece), not piece.source, piece.started))


def pairs(
    records: Records,
    reference: Callable[[str], str],
    code_of: CodeOf = installed_code,
    tuned: Callable[[str], bool] = lambda stack: False,
    wanted: Callable[[str], bool] = lambda stack: True,
    version_of: VersionOf = lambda baseline: None,
    left_out: list[str] | None = None,
    active: ActiveOf = lambda stack: (),
) -> list[Row]:
    """A row for each pair that has evidence, on each machine that timed it, or where none did on one that learned it.

    A pair is what was timed together, and any other stack with what ``reference`` says of it. Of stacks that are to be
    ``tuned`` both sides have the learning rate that validation data chose, once their grids are complete. Only rows of
    ``wanted`` stacks are computed, which are the same as among all others. ``version_of``: a baseline's version that is
    installed; a row is of an older one where that or other records are newer. A record at which that fails is left out,
    with a sentence in ``left_out``. ``active``: the probes that show whether a stack's mechanism acts: where one is 0
    in every seed, nothing was exercised, and the row has no quality.
    """

    def compute(some: Records) -> tuple[list[Row], list[Failing]]:
        return _pairs(some, reference, code_of, tuned, wanted, version_of, active)

    return from_sound(records, compute, [] if left_out is None else left_out)


def _pairs(
    records: Records,
    reference: Callable[[str], str],
    code_of: CodeOf,
    tuned: Callable[[str], bool],
    wanted: Callable[[str], bool],
    version_of: VersionOf,
    active: ActiveOf,
) -> tuple[list[Row], list[Failing]]:
    """The rows, and what could not be computed."""
    currency = Currency.of(records.renewals, code_of)
    pool = _Pool(records, currency, version_of)
    places = _places(pool, reference)
    failing, drafts, all_rows = pool.failing, [], []
    shared: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for place in places:
        try:
            drafts.append(_Draft.of(place, pool, tuned(place.stack)))
        except Exception as error:  # whatever its records hold; the others are shown
            failing.append(_failing(place, pool, records, error))
    for draft in drafts:
        shared[draft.place.key, draft.place.machine].append(draft.known)
    moderation: dict[tuple[str, str], Priors] = {}
    for draft in drafts:
        board = draft.place.key, draft.place.machine
        try:
            if board not in moderation:
                moderation[board] = priors(shared[board])
            if wanted(draft.place.stack):
                all_rows.append(draft.row(moderation[board], active(draft.place.stack)))
        except Exception as error:
            failing.append(_failing(draft.place, pool, records, error))
    return all_rows, failing


def _failing(place: _Place, pool: _Pool, records: Records, error: Exception) -> Failing:
    """That the row of a place could not be computed, from all that is known of its two sides."""
    family = pool.conditions[place.key].family
    sides = {place.stack, place.reference}
    of_pair = [
        (piece, stacks)
        for piece in pieces_of(records)
        if piece.conditions.family == family and (stacks := {*stacks_of(piece)}) & sides
    ]
    return Failing(
        [piece for piece, _ in of_pair], [piece for piece, stacks in of_pair if place.stack in stacks], error
    )


def _places(pool: _Pool, reference: Callable[[str], str]) -> dict[_Place, None]:
    """Where there are rows."""
    places: dict[_Place, None] = {}
    timed_anywhere: set[tuple[str, str, str]] = set()
    for (key, against, stack), by_machine in pool.timed.items():
        timed_anywhere.add((key, against, stack))
        places |= {_Place(stack, against, key, machine): None for machine in by_machine}
    learners = {at: next(iter(of_bits.values())) for at, of_bits in pool.learned.items()}
    owners = [
        {at: next(iter(of_seeds.values())).place.key for at, of_seeds in learners.items()},
        {at: next(iter(of_machines)) for at, of_machines in pool.counted.items()},
    ]
    for known in owners:
        for (key, stack), own in known.items():
            against = reference(stack)
            if stack == against or (key, against, stack) in timed_anywhere or pool.conditions[key].rate != 1:
                continue
            if not pool.counted.get((key, stack)) and pool.is_twin(key, stack, against):
                continue
            if pool.learned.get((key, against)) or pool.counted.get((key, against)):
                places.setdefault(_Place(stack, against, key, own), None)
    return places


@dataclass(frozen=True)
class _Draft:
    """A row before its metrics are computed, which takes all rows of its board."""

    place: _Place
    pool: _Pool
    known: Known
    failures: tuple[Failure, ...]
    evidence: tuple[Counted | Learned | Timed, ...]
    learned_on: str
    unverified: tuple[str, ...]
    tuned: tuple[tuning.Choice, tuning.Choice] | None
    to_tune: bool

    @classmethod
    def of(cls, place: _Place, pool: _Pool, to_tune: bool) -> _Draft:
        failures: list[Failure] = []
        evidence: list[Counted | Learned | Timed] = []
        unverified: dict[str, None] = {}
        learned, learned_on, tuned = _learned_pairs(place, pool, to_tune)
        good: list[LearnedPair] = []
        for pair in learned:
            evidence += [*pair.sides, *pair.twins]
            if not all(map(pool.currency.has, [*pair.sides, *pair.twins])):
                unverified["learned"] = None
            if broken := next((run for run in reversed(pair.sides) if run.status != "ok"), None):
                failures.append(Failure("learned", pair.seed, broken.stack, broken.status, broken.reason))
            else:
                good.append(pair)
        counted = tuple(
            _nearest(pool.counted[place.key, stack], place.machine) for stack in (place.reference, place.stack)
        )
        for one in counted:
            if one is None:
                continue
            evidence.append(one)
            if not pool.currency.has(one):
                unverified["counted"] = None
            if one.status != "ok":
                failures.append(Failure("counted", None, one.stack, one.status, one.reason))
        timed: list[TimedPair] = []
        of_machine = pool.timed.get((place.key, place.reference, place.stack), {}).get(place.machine, {})
        for (replicate, _), (timing, index) in sorted(of_machine.items()):
            if 0 < timing.windows_of(index) < windows_of(counted):  # of the run's beginning alone, and its cost changes
                continue
            evidence.append(timing)
            sides = timing.contenders[index], timing.reference
            if not all(pool.currency.has_side(timing, side) for side in sides):
                unverified["timed"] = None
            if side := next((ended for ended in sides if ended.status != "ok"), None):
                failures.append(Failure("timed", replicate, side.stack, side.status, side.reason))
                continue
            try:
                timed.append(replace(timed_pair(timing, index), replicate=len(timed)))
            except (ValueError, ArithmeticError) as error:
                why = f"its samples give no ratio: {error}"
                failures.append(Failure("timed", replicate, place.stack, "failed", why))
        sound = tuple(one if one and one.status == "ok" else None for one in counted)
        conditions = pool.conditions[place.key]
        known = Known(
            (sound[0], sound[1]),
            tuple(good),
            tuple(timed),
            pool.ruler(conditions, tuned[0].rate if tuned else conditions.rate),
        )
        return cls(place, pool, known, tuple(failures), tuple(evidence), learned_on, tuple(unverified), tuned, to_tune)

    def row(self, moderation: Priors, active: Sequence[str]) -> Row:
        metrics = values(self.known, moderation)
        inactive = ""
        if self.known.does_the_same:
            metrics = {name: replace(value, control=True) for name, value in metrics.items()}
        elif inactive := self.known.never_acted(active):
            metrics = {name: _unexercised(name, value, inactive) for name, value in metrics.items()}
        learned = [failure for failure in self.failures if failure.kind == "learned"]
        if diverged := sum((failure.stack, failure.status) == (self.place.stack, "diverged") for failure in learned):
            of = len(learned) + len(self.known.learned)
            metrics["time_to_quality"] = MetricValue("missed", reason=f"diverged in {diverged} of {of} seeds")
        headline = metrics["time_to_quality"].log
        conditions = self.pool.conditions[self.place.key]
        newer_version = self.pool.newer_version(conditions)
        setup = [pair.setup_cost for pair in self.known.timed]
        return Row(
            stack=self.place.stack,
            reference=self.place.reference,
            conditions=conditions,
            machine=self.pool.machines[self.place.machine],
            known=self.known,
            failures=self.failures,
            metrics=metrics,
            setup=replicate_interval(setup) if setup else None,
            probes=probes_of(self.known),
            newest=max(piece.started for piece in self.evidence),
            records=tuple(dict.fromkeys(piece.id for piece in self.evidence)),
            learned_on=self.learned_on,
            detectable_effect=detectable_effect(headline) if headline else math.inf,
            notes=(*([f"{NOT_EXERCISED}: {inactive}"] if inactive else []), *self._notes()),
            unverified=() if newer_version else self.unverified,
            tuned=self.tuned,
            to_tune=self.to_tune,
            newer_version=newer_version,
            inactive=inactive,
        )

    def _notes(self) -> tuple[str, ...]:
        known, here = self.known, self.pool.machines[self.place.machine].name
        notes = []
        if known.does_the_same:
            notes.append("a control: it does what the reference does, in every bit and count")
        if any(isinstance(piece, Timed) and piece.pairing == "sequential" for piece in self.evidence):
            notes.append("timed one after the other, not interleaved")
        if self.learned_on and self.learned_on != here:
            notes.append(f"curves learned on {self.learned_on}")
        if self.tuned:
            notes.append(tuning.in_words(*self.tuned))
        elif self.to_tune and known.learned:
            notes.append("its learning rate is not tuned yet")
        if lent := [str(pair.seed) for pair in known.learned if pair.contender is pair.reference]:
            notes.append(f"equal to the reference's run to the bit, so not run again with seed {', '.join(lent)}")
        if 0 < len(known.timed) < FEWEST_TIMED:
            notes.append("one set of processes: no interval of its times")
        hidden = [_hidden_cost(pair) for pair in known.timed]
        if len(hidden) >= FEWEST_TIMED:
            interval = replicate_interval(hidden)
            if interval.low > 0 and interval.estimate > HIDDEN_COST:
                more = math.expm1(interval.estimate)
                notes.append(f"rare expensive steps: summed training time is {more:.0%} above what the medians price")
        return tuple(notes)


def _unexercised(name: str, value: MetricValue, why: str) -> MetricValue:
    """A value of a row whose mechanism never acted: of quality there is none, since nothing was exercised."""
    metric = metric_of(name)
    return unavailable(f"{NOT_EXERCISED}: {why}") if metric is not None and metric.quality else value


def _hidden_cost(pair: TimedPair) -> float:
    """ln of summed over median-priced time, contender over reference."""
    summed = [
        sum(sum(map(sum, part.block_s)) / (2 * len(part.block_s) * part.block_steps) for part in side.windows)
        for side in pair.sides
    ]
    assert pair.contender.steps and pair.reference.steps
    progress = math.log(pair.contender.steps / pair.reference.steps)
    return math.log(summed[1] / summed[0]) - (pair.training_log_ratio - progress)


def _learned_pairs(
    place: _Place, pool: _Pool, to_tune: bool
) -> tuple[list[LearnedPair], str, tuple[tuning.Choice, tuning.Choice] | None]:
    """Both sides' runs by seed, of equal bits: those that the row's own machine learned among, or else those with the
    most; the names of the machines that learned them, and what tuning chose."""
    own = pool.conditions[place.key].rate

    def shared(bits: str, rates: tuple[float, float]) -> list[LearnedPair]:
        stacks = (place.reference, place.stack)
        theirs, ours = (pool.runs(place.key, stack, bits, rate) for stack, rate in zip(stacks, rates, strict=True))
        whole = completed(theirs, ours)
        return [pool.pair(theirs[seed], whole[seed]) for seed in sorted(theirs.keys() & whole.keys())]

    def of(bits: str) -> tuple[list[LearnedPair], tuple[tuning.Choice, tuning.Choice] | None]:
        theirs, ours = (pool.choice(place.key, stack, bits) for stack in (place.reference, place.stack))
        if to_tune and theirs and ours:
            return shared(bits, (theirs.rate, ours.rate)), (theirs, ours)
        return shared(bits, (own, own)), None

    options = [(place.machine in machines, *of(bits)) for bits, machines in pool.learners.items()]
    _, pairs, tuned = max(
        options, key=lambda known: (known[0] and bool(known[1]), len(known[1])), default=(False, [], None)
    )
    names = dict.fromkeys(pair.contender.place.name for pair in pairs)
    return pairs, ", ".join(sorted(names)), tuned


def _nearest(by_machine: Mapping[str, Counted], own: str) -> Counted | None:
    return by_machine.get(own) or min(by_machine.values(), key=lambda counted: bool(counted.source), default=None)


def probes_of(known: Known) -> dict[str, Interval]:
    """Each probe of recorded steps, which is exact, and the mean of each other over the seeds in which it is finite."""
    _, counted = known.counted
    of_steps = counted.probes if counted else {}
    exact = {
        name: Interval(value, value, value, 1.0, EXACT, 1) for name, value in of_steps.items() if math.isfinite(value)
    }
    read: dict[str, list[float]] = defaultdict(list)
    for pair in known.learned:
        for name, value in pair.contender.probes.items():
            if math.isfinite(value):
                read[name].append(value)
    of_seeds = {name: moderated_interval(numbers, None) for name, numbers in read.items()}
    return dict(sorted((of_seeds | exact).items()))


def of_version(row: Row) -> str:
    """``of version 2 of the baseline, which is at version 3 now``; empty where the row is of the newest."""
    version = row.conditions.baseline_version
    return (
        f"of version {version} of the baseline, which is at version {row.newer_version} now"
        if row.newer_version
        else ""
    )


def reached(row: Row) -> int:
    """Seeds whose final loss came within the tolerance of the reference's."""
    try:
        return sum(log_ratio <= QUALITY_TOLERANCE for log_ratio in METRICS["loss"].samples(row.known).values())
    except ValueError:
        return 0


def undecided(row: Row) -> bool:
    """Whether more replicates may decide the row: the interval of its time to the same quality contains 1, and a
    change of WORTH_SEEING would probably (by 20 % or more) have been missed. A bound and a missed quality are decided,
    and where something else is missing, such as a second set of processes, seeds are not what it takes."""
    headline = row.value("time_to_quality").log
    known = headline is not None and len(row.known.timed) >= FEWEST_TIMED and headline.contains(0.0)
    return known and row.detectable_effect > math.log1p(WORTH_SEEING)


# for commands -------------------------------------------------------------------------------------------------------


def rows(
    records: Records, wanted: Callable[[str], bool] = lambda stack: True, left_out: list[str] | None = None
) -> list[Row]:
    """The rows that the leaderboard shows of the ``wanted`` stacks, in the order of their boards; ``left_out`` as in
    :func:`pairs`."""
    shown = pairs(
        records,
        card_reference,
        tuned=_tuned,
        wanted=wanted,
        version_of=installed_version,
        left_out=left_out,
        active=_activity_probes,
    )
    return sorted(shown, key=lambda row: (row.board, row.stack))


def card_reference(stack: str) -> str:
    """What the stack's cards compare it with; the baseline where a technique is not installed, or its card broken."""
    try:
        return reference_of(stack)[0]
    except (LookupError, CardError):
        return BASELINE


def _tuned(stack: str) -> bool:
    try:
        return tunes(stack)
    except CardError:
        return False


def _activity_probes(stack: str) -> tuple[str, ...]:
    try:
        return activity_probes(stack)
    except CardError:
        return ()


def row_of(records: Records, setting: Setting, stack: str, reference: str) -> Row:
    """The row of a pair on this machine; ``setting`` has its steps. Raises NoRecord where there is none."""
    return row_among(rows_against(records, reference, {stack}), setting, stack, reference)


def rows_against(records: Records, reference: str, stacks: Collection[str]) -> list[Row]:
    """All rows of these stacks beside that reference."""
    return pairs(
        records,
        lambda _: reference,
        tuned=tunes,
        wanted=stacks.__contains__,
        version_of=installed_version,
        active=activity_probes,
    )


def row_among(known: Sequence[Row], setting: Setting, stack: str, reference: str) -> Row:
    """The row of a pair among others, on this machine if it has one. Raises NoRecord where there is none."""
    machine = fingerprint(setting.device, setting.threads).key
    wanted = setting.model_dump(exclude={"data"})
    fitting = [
        row
        for row in known
        if (row.stack, row.reference) == (stack, reference) and wanted.items() <= row.conditions.model_dump().items()
    ]
    if not fitting:
        raise NoRecord(f"no record of {stack} against {reference} on {setting.baseline}; measure it again")
    return max(
        fitting,
        key=lambda row: (row.conditions.baseline_version, row.machine.key == machine, not row.unverified, row.newest),
    )


def as_dict(row: Row) -> dict[str, Any]:
    """The row as JSON values, without the raw samples; None stands for what is not finite."""
    return {
        "stack": row.stack,
        "reference": row.reference,
        "conditions": row.conditions.model_dump(),
        "machine": row.machine.name,
        "machine_key": row.machine.key,
        "learned_on": row.learned_on,
        "newest": row.newest,
        "records": list(row.records),
        "rates": [side.rate for side in row.tuned] if row.tuned else None,
        "tuning_open": row.tuning_open,
        "seeds": list(row.seeds),
        "timings": len(row.known.timed),
        "failures": [vars(failure) for failure in row.failures],
        "unverified": list(row.unverified),
        "newer_version": row.newer_version,
        "notes": list(row.notes),
        "inactive": row.inactive,
        "metrics": {name: _value_as_dict(value) for name, value in row.metrics.items()},
        "setup_reference_steps": interval_as_dict(row.setup),
        "seeds_reaching_quality": reached(row),
        "detectable_effect": finite(row.detectable_effect),
        "probes": {name: interval_as_dict(interval) for name, interval in row.probes.items()},
    }


def _value_as_dict(value: MetricValue) -> dict[str, Any]:
    return {
        "kind": value.kind,
        "ratio": finite(value.number),
        "at_most": value.at_most,
        "interval": interval_as_dict(value.interval),
        "reference": value.reference,
        "contender": value.contender,
        "reason": value.reason,
        "note": value.note,
    }


def interval_as_dict(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    ends = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: finite(end) for name, end in ends.items()} | {
        "level": interval.level,
        "method": interval.method,
        "n": interval.n,
    }


def finite(number: float) -> float | None:
    """The number, or None where it is not finite: JSON has no such numbers."""
    return number if math.isfinite(number) else None
