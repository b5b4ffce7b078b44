"""Builds views over evidence: every pair (reference, contender) as one row, with its failures, ratios and intervals.

Pure functions of records. Which of them count, the index says (:mod:`suite.judge.evidence`); a row says whose curves it
has, and what of it is unverified.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suite.entries.card import CardError
from suite.entries.catalogue import activity_probes, reference_of, tunes
from suite.entries.sources import CodeOf, installed_code
from suite.judge import tuning
from suite.judge.evidence import Currency, EvidenceIndex, LearnedPairs, PairAt
from suite.judge.known import Known, LearnedPair, TimedPair, timed_pair
from suite.judge.metrics import METRICS, MetricValue, Priors, metric_of, priors, unavailable, values
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
from suite.record.job import BASELINE, Setting, is_updates_alone
from suite.record.machine import fingerprint
from suite.record.schema import (
    Conditions,
    Counted,
    Learned,
    Machine,
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
    """Describes a run that gives no numbers. ``stack`` is the reference or the contender, whichever failed;
    ``replicate`` the seed of what should have been learned, the number of what should have been timed, None of a
    count."""

    kind: str
    replicate: int | None
    stack: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Row:
    """Compares one contender with one reference under one set of conditions.

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
        """Returns the seeds of what was learned."""
        return tuple(pair.seed for pair in self.known.learned)

    @property
    def tuning_open(self) -> bool:
        """Tells whether a rate that was to be tuned is not bracketed yet."""
        return self.to_tune and not (self.tuned and all(side.settled for side in self.tuned))

    @property
    def split_over(self) -> int:
        """Returns the number of ranks that share what one process of the reference does, and are counted one by one;
        else 1."""
        reference, contender = self.ranks
        return contender if contender > reference else 1

    @property
    def ranks(self) -> tuple[int, int]:
        """Returns the ranks of the reference and of the contender; each has as many cores as the conditions have
        threads, or a GPU."""
        reference, contender = (
            max((point.counters.ranks for point in side.points), default=1) if side else 1
            for side in self.known.counted
        )
        return reference, contender

    def value(self, metric: str) -> MetricValue:
        return self.metrics.get(metric, unavailable("not measured"))

    @property
    def failed(self) -> bool:
        """Tells whether nothing was learned, timed or counted of it."""
        return not (self.known.learned or self.known.timed or all(self.known.counted))

    @property
    def board(self) -> tuple[str, str, str]:
        """Returns the key of the row's board: rows with the same key may be ranked together."""
        return self.conditions.key, self.machine.key, self.reference


# pooling ------------------------------------------------------------------------------------------------------------


class _Pool:
    """What rows are made of: the index of the records that can be read, and what these say of themselves."""

    def __init__(self, records: Records, currency: Currency, version_of: VersionOf) -> None:
        self.currency = currency
        self.version_of = version_of
        self.newest: dict[str, int] = {}  # version in the records, by baseline
        self.conditions: dict[str, Conditions] = {}
        self.machines: dict[str, Machine] = {}
        self.failing: list[Failing] = []
        for piece in pieces_of(records):
            try:
                self._admit(piece)
            except Exception as error:  # of one record, whatever it holds; the others have their rows
                self.failing.append(Failing([piece], [piece], error))
        if self.failing:
            records = without(records, {culprit.id for failing in self.failing for culprit in failing.pieces})
        self.index = EvidenceIndex(records, currency)

    def _admit(self, piece: Piece) -> None:
        """Takes what a record says of itself."""
        home, c = piece.home, piece.conditions
        _ = self.currency.has_side(piece, piece.reference) if isinstance(piece, Timed) else self.currency.has(piece)
        self.conditions[c.key] = c
        self.newest[c.baseline] = max(c.baseline_version, self.newest.get(c.baseline, c.baseline_version))
        self.machines[home.key] = home

    def newer_version(self, conditions: Conditions) -> int | None:
        """Returns the newest version of the baseline, where it is newer than that of the conditions."""
        newest = max(self.newest[conditions.baseline], self.version_of(conditions.baseline) or 0)
        return newest if newest > conditions.baseline_version else None


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
    """Returns a row for each pair that has evidence, on each machine that timed it, or where none did on one that
    learned it.

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
    """Returns the rows, and what could not be computed."""
    currency = Currency.of(records.renewals, code_of)
    pool = _Pool(records, currency, version_of)
    failing, drafts, all_rows = pool.failing, [], []
    shared: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for pair in _pairs_known(pool, reference):
        try:
            drafts.append(_Draft.of(pair, pool, tuned(pair.stack)))
        except Exception as error:  # whatever its records hold; the others are shown
            failing.append(_failing(pair, pool, records, error))
    for draft in drafts:
        if any(map(is_updates_alone, draft.at.sides)):
            continue  # no training step: its variance is that of another quantity
        shared[draft.at.conditions.key, draft.at.machine].append(draft.known)
    moderation: dict[tuple[str, str], Priors] = {}
    for draft in drafts:
        board = draft.at.conditions.key, draft.at.machine
        try:
            if board not in moderation:
                moderation[board] = priors(shared[board])
            if wanted(draft.at.stack):
                all_rows.append(draft.row(moderation[board], active(draft.at.stack)))
        except Exception as error:
            failing.append(_failing(draft.at, pool, records, error))
    return all_rows, failing


def _failing(pair: PairAt, pool: _Pool, records: Records, error: Exception) -> Failing:
    """Reports that no row could be computed of a pair, from all that is known of its two sides."""
    family, sides = pair.conditions.family, {*pair.sides}
    of_pair = [
        (piece, stacks)
        for piece in pieces_of(records)
        if piece.conditions.family == family and (stacks := {*stacks_of(piece)}) & sides
    ]
    return Failing([piece for piece, _ in of_pair], [piece for piece, stacks in of_pair if pair.stack in stacks], error)


def _pairs_known(pool: _Pool, reference: Callable[[str], str]) -> dict[PairAt, None]:
    """Where there are rows: on each machine that timed a pair; else on one that learned most of it, or counted it."""
    index = pool.index
    pairs: dict[PairAt, None] = {}
    for (key, against, stack), by_machine in index.timed.items():
        pairs |= {PairAt(stack, against, pool.conditions[key], machine): None for machine in by_machine}
    owners: dict[tuple[str, str], Counted | Learned] = {at: counts[0] for at, counts in index.counted.items()}
    owners |= {at: next(iter(max(by_bits.values(), key=len).values()))[0] for at, by_bits in index.learned.items()}
    for (key, stack), own in owners.items():
        against = reference(stack)
        if stack == against or (key, against, stack) in index.timed or pool.conditions[key].rate != 1:
            continue
        if (key, stack) not in index.counted and index.is_twin(key, stack, against):
            continue
        if (key, against) in index.learned or (key, against) in index.counted:
            pairs[PairAt(stack, against, pool.conditions[key], own.home.key)] = None
    return pairs


@dataclass(frozen=True)
class _Draft:
    """Holds a row before its metrics are computed, which takes all rows of its board."""

    at: PairAt
    pool: _Pool
    known: Known
    failures: tuple[Failure, ...]
    evidence: tuple[Counted | Learned | Timed, ...]
    unverified: tuple[str, ...]
    learned: LearnedPairs
    to_tune: bool

    @property
    def learned_on(self) -> str:
        return ", ".join(sorted({pair.contender.home.name for pair in self.learned.pairs}))

    @classmethod
    def of(cls, at: PairAt, pool: _Pool, to_tune: bool) -> _Draft:
        failures: list[Failure] = []
        evidence: list[Counted | Learned | Timed] = []
        unverified: dict[str, None] = {}
        learned = pool.index.learned_pairs(at, to_tune)
        good: list[LearnedPair] = []
        for pair in learned.pairs:
            evidence += [*pair.sides, *pair.twins]
            if not all(map(pool.currency.has, [*pair.sides, *pair.twins])):
                unverified["learned"] = None
            if broken := next((run for run in reversed(pair.sides) if run.status != "ok"), None):
                failures.append(Failure("learned", pair.seed, broken.stack, broken.status, broken.reason))
            else:
                good.append(pair)
        counted = [pool.index.count(at.conditions.key, stack, at.machine) for stack in at.sides]
        for one in counted:
            if one is None:
                continue
            evidence.append(one)
            if not pool.currency.has(one):
                unverified["counted"] = None
            if one.status != "ok":
                failures.append(Failure("counted", None, one.stack, one.status, one.reason))
        timed: list[TimedPair] = []
        for timing, index in pool.index.timings(at, windows_of(counted)):
            evidence.append(timing)
            sides = timing.contenders[index], timing.reference
            if not all(pool.currency.has_side(timing, side) for side in sides):
                unverified["timed"] = None
            if side := next((ended for ended in sides if ended.status != "ok"), None):
                failures.append(Failure("timed", timing.replicate, side.stack, side.status, side.reason))
                continue
            try:
                timed.append(replace(timed_pair(timing, index), replicate=len(timed)))
            except (ValueError, ArithmeticError) as error:
                why = f"its samples give no ratio: {error}"
                failures.append(Failure("timed", timing.replicate, at.stack, "failed", why))
        sound = tuple(one if one and one.status == "ok" else None for one in counted)
        rate = learned.rates[0].rate if learned.rates else at.conditions.rate
        known = Known((sound[0], sound[1]), tuple(good), tuple(timed), pool.index.ruler(at.conditions, rate))
        return cls(at, pool, known, tuple(failures), tuple(evidence), tuple(unverified), learned, to_tune)

    def row(self, moderation: Priors, active: Sequence[str]) -> Row:
        metrics = values(self.known, moderation)
        inactive = ""
        if self.known.does_the_same:
            metrics = {name: replace(value, control=True) for name, value in metrics.items()}
        elif inactive := self.known.never_acted(active):
            metrics = {name: _unexercised(name, value, inactive) for name, value in metrics.items()}
        learned = [failure for failure in self.failures if failure.kind == "learned"]
        if diverged := sum((failure.stack, failure.status) == (self.at.stack, "diverged") for failure in learned):
            of = len(learned) + len(self.known.learned)
            metrics["time_to_quality"] = MetricValue("missed", reason=f"diverged in {diverged} of {of} seeds")
        headline = metrics["time_to_quality"].log
        conditions = self.at.conditions
        newer_version = self.pool.newer_version(conditions)
        setup = [pair.setup_cost for pair in self.known.timed]
        return Row(
            stack=self.at.stack,
            reference=self.at.reference,
            conditions=conditions,
            machine=self.pool.machines[self.at.machine],
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
            tuned=self.learned.rates,
            to_tune=self.to_tune,
            newer_version=newer_version,
            inactive=inactive,
        )

    def _notes(self) -> tuple[str, ...]:
        known, here = self.known, self.pool.machines[self.at.machine].name
        notes = []
        if known.does_the_same:
            notes.append("a control: it does what the reference does, in every bit and count")
        if any(isinstance(piece, Timed) and piece.pairing == "sequential" for piece in self.evidence):
            notes.append("timed one after the other, not interleaved")
        if self.learned_on and self.learned_on != here:
            notes.append(f"curves learned on {self.learned_on}")
        if self.learned.rates:
            notes.append(tuning.in_words(*self.learned.rates))
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
    """Returns a value of a row whose mechanism never acted: of quality there is none, since nothing was exercised."""
    metric = metric_of(name)
    return unavailable(f"{NOT_EXERCISED}: {why}") if metric is not None and metric.quality else value


def _hidden_cost(pair: TimedPair) -> float:
    """Returns ln of summed over median-priced time, contender over reference."""
    summed = [
        sum(sum(map(sum, part.block_s)) / (2 * len(part.block_s) * part.block_steps) for part in side.windows)
        for side in pair.sides
    ]
    assert pair.contender.steps and pair.reference.steps
    progress = math.log(pair.contender.steps / pair.reference.steps)
    return math.log(summed[1] / summed[0]) - (pair.training_log_ratio - progress)


def probes_of(known: Known) -> dict[str, Interval]:
    """Returns each probe of recorded steps, which is exact, and the mean of each other over the seeds in which it is
    finite."""
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
    """Returns ``of version 2 of the baseline, which is at version 3 now``; empty where the row is of the newest."""
    version = row.conditions.baseline_version
    return (
        f"of version {version} of the baseline, which is at version {row.newer_version} now"
        if row.newer_version
        else ""
    )


def reached(row: Row) -> int:
    """Counts the seeds whose final loss came within the tolerance of the reference's."""
    try:
        return sum(log_ratio <= QUALITY_TOLERANCE for log_ratio in METRICS["loss"].samples(row.known).values())
    except ValueError:
        return 0


def undecided(row: Row) -> bool:
    """Tells whether more replicates may decide the row: the interval of its time to the same quality contains 1, and a
    change of WORTH_SEEING would probably (by 20 % or more) have been missed. A bound and a missed quality are decided,
    and where something else is missing, such as a second set of processes, seeds are not what it takes."""
    headline = row.value("time_to_quality").log
    known = headline is not None and len(row.known.timed) >= FEWEST_TIMED and headline.contains(0.0)
    return known and row.detectable_effect > math.log1p(WORTH_SEEING)


# for commands -------------------------------------------------------------------------------------------------------


def rows(
    records: Records, wanted: Callable[[str], bool] = lambda stack: True, left_out: list[str] | None = None
) -> list[Row]:
    """Returns the rows that the leaderboard shows of the ``wanted`` stacks, in the order of their boards; ``left_out``
    as in :func:`pairs`."""
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
    """Returns what the stack's cards compare it with; the baseline where a technique is not installed, or its card
    broken."""
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
    """Returns the row of a pair on this machine; ``setting`` has its steps. Raises NoRecord where there is none."""
    return row_among(rows_against(records, reference, {stack}), setting, stack, reference)


def rows_against(records: Records, reference: str, stacks: Collection[str]) -> list[Row]:
    """Returns all rows of these stacks beside that reference."""
    return pairs(
        records,
        lambda _: reference,
        tuned=tunes,
        wanted=stacks.__contains__,
        version_of=installed_version,
        active=activity_probes,
    )


def row_among(known: Sequence[Row], setting: Setting, stack: str, reference: str) -> Row:
    """Returns the row of a pair among others, on this machine if it has one. Raises NoRecord where there is none."""
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
    """Returns the row as JSON values, without the raw samples; None stands for what is not finite."""
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
    """Returns the number, or None where it is not finite: JSON has no such numbers."""
    return number if math.isfinite(number) else None
