"""Views over records: every pair (reference, contender) as one row with its seeds, failures, ratios and intervals.

Pure functions of records. Replicates are pooled into a row only under equal conditions, machine, harness, baseline and
technique code, and pairing; interleaved and sequential timings are never mixed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from suite.contract.sources import Sources, current_sources
from suite.judge.metrics import METRICS, Seeds, Value, unavailable, values
from suite.judge.replicate import Replicate, replicate_of
from suite.judge.statistics import (
    QUALITY_TOLERANCE,
    Interval,
    TimeToQuality,
    detectable_effect,
    replicate_interval,
)
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import Conditions, Machine, Record, Status
from suite.record.store import NoRecord

HIDDEN_COST = 0.02  # a mean this much above the segment medians, beyond its interval, is worth a note


@dataclass(frozen=True)
class Failure:
    """A seed that gives no numbers. ``stack`` is the reference or the contender, whichever failed."""

    seed: int
    stack: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Row:
    """One contender against one reference under one set of conditions, over seeds.

    ``metrics`` by their names in the registry (:mod:`suite.judge.metrics`); of a row that failed, hardly any.
    """

    stack: str
    reference: str
    conditions: Conditions
    machine: Machine
    pairing: Literal["interleaved", "sequential"]
    harness_sha256: str
    baseline_sha256: str
    sources: Mapping[str, str]
    newest: str  # start of the newest record, ISO 8601
    records: tuple[str, ...]
    replicates: tuple[Replicate, ...]
    failures: tuple[Failure, ...]
    metrics: Mapping[str, Value]
    setup: Interval | None  # in reference steps, beyond the reference's
    probes: Mapping[str, Interval]
    reached: int  # seeds whose final loss came within the tolerance of the reference's
    detectable_effect: float  # of step time: the log ratio that this row had the power (80 %) to see
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()  # what changed since; empty when current

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(each.seed for each in self.replicates)

    def value(self, metric: str) -> Value:
        return self.metrics.get(metric, unavailable("no seed finished"))

    @property
    def failed(self) -> bool:
        return not self.replicates

    @property
    def board(self) -> tuple[str, str, str]:
        """The key of the row's board: rows with the same key may be ranked together."""
        return self.conditions.key, self.machine.key, self.reference


def pairs(records: Iterable[Record], current: Sources | None = None) -> list[Row]:
    """Pool records into one row per (reference, contender) and set of equal conditions and sources.

    Rows stand in order of first appearance. The newest of several records of one seed counts. With ``current``, rows of
    other code are marked stale.
    """
    groups: dict[tuple[Any, ...], dict[int, tuple[Record, int]]] = defaultdict(dict)
    for record in _with_known_data(sorted(records, key=lambda record: record.started)):
        twins: dict[str, int] = defaultdict(int)  # of one stack in one record, as in A/A comparisons
        for index, contender in enumerate(record.contenders[1:], 1):
            key = (
                contender.stack, record.reference.stack, twins[contender.stack], record.conditions.key,
                record.machine.key, record.pairing, record.harness_sha256, record.baseline_sha256,
                tuple(sorted(contender.sources.items())), tuple(sorted(record.reference.sources.items())),
            )  # fmt: skip
            twins[contender.stack] += 1
            groups[key][record.seed] = (record, index)
    return [_row([group[seed] for seed in sorted(group)], current) for group in groups.values()]


def latest(rows: Iterable[Row]) -> list[Row]:
    """Drop the stale rows that a current or newer row has replaced."""
    chosen: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (not row.stale, row.newest)):
        chosen[row.stack, row.pairing, *row.board] = row
    return sorted(chosen.values(), key=lambda row: (row.board, row.stack))


def _with_known_data(records: Sequence[Record]) -> list[Record]:
    """Fill in the data of records in which no run loaded it, from records of otherwise equal conditions."""

    def but_data(record: Record) -> str:
        return record.conditions.model_dump_json(exclude={"data", "data_sha256"})

    known = {but_data(record): record.conditions for record in records if record.conditions.data_sha256}
    return [
        record
        if record.conditions.data_sha256 or but_data(record) not in known
        else record.model_copy(update={"conditions": known[but_data(record)]})
        for record in records
    ]


def _row(members: Sequence[tuple[Record, int]], current: Sources | None) -> Row:
    newest, index = max(members, key=lambda member: member[0].started)
    replicates: list[Replicate] = []
    failures: list[Failure] = []
    diverged: list[TimeToQuality] = []
    for record, position in members:
        contender, reference = record.contenders[position], record.reference
        broken = next((each for each in (contender, reference) if each.status != "ok"), None)
        if broken:
            failures.append(Failure(record.seed, broken.stack, broken.status, broken.reason))
            if contender.status == "diverged" and reference.status == "ok" and reference.curve and reference.steps:
                diverged.append(TimeToQuality(reference.curve[-1].loss, reference.steps, math.inf, math.inf))
            continue
        try:
            replicates.append(replicate_of(record, position))
        except (ValueError, ArithmeticError) as error:
            failures.append(Failure(record.seed, contender.stack, "failed", f"its samples give no ratio: {error}"))
    metrics = values(Seeds(replicates, diverged))
    step = metrics["step_time"].log if replicates else None
    sources = {**newest.reference.sources, **newest.contenders[index].sources}
    return Row(
        stack=newest.contenders[index].stack,
        reference=newest.reference.stack,
        conditions=newest.conditions,
        machine=newest.machine,
        pairing=newest.pairing,
        harness_sha256=newest.harness_sha256,
        baseline_sha256=newest.baseline_sha256,
        sources=sources,
        newest=newest.started,
        records=tuple(record.id for record, _ in members),
        replicates=tuple(replicates),
        failures=tuple(failures),
        metrics=metrics,
        setup=replicate_interval([each.setup_cost for each in replicates]) if replicates else None,
        probes=_probes(replicates),
        reached=sum(map(_reached, replicates)),
        detectable_effect=detectable_effect(step) if step else math.inf,
        notes=_notes(replicates, newest.pairing),
        stale=current.changes(_sources(newest, sources)) if current else (),
    )


def _sources(record: Record, techniques: Mapping[str, str]) -> Sources:
    return Sources(record.harness_sha256, {record.conditions.baseline: record.baseline_sha256}, techniques)


def _reached(each: Replicate) -> bool:
    """Whether the contender's final loss came within the tolerance of the reference's."""
    try:
        return METRICS["loss"].log_cost_ratio(each) <= QUALITY_TOLERANCE
    except ValueError:
        return False  # one of them is no loss


def _notes(replicates: Sequence[Replicate], pairing: str) -> tuple[str, ...]:
    notes = ["timed one after the other, not interleaved"] if pairing == "sequential" else []
    if len(replicates) == 1:
        notes.append("one seed: the interval cannot see how processes differ")
    if len(replicates) > 1:
        hidden = replicate_interval([each.hidden_log_cost for each in replicates])
        if hidden.low > 0 and hidden.estimate > HIDDEN_COST:
            more = math.expm1(hidden.estimate)
            notes.append(f"rare expensive steps: summed training time is {more:.0%} above what the medians price")
    return tuple(notes)


def _probes(replicates: Sequence[Replicate]) -> dict[str, Interval]:
    """The mean of each probe over the seeds in which it is finite."""
    samples: dict[str, list[float]] = defaultdict(list)
    for each in replicates:
        for name, value in each.contender.probes.items():
            if math.isfinite(value):
                samples[name].append(value)
    return {name: replicate_interval(values) for name, values in sorted(samples.items())}


# for commands -------------------------------------------------------------------------------------------------------


def rows(records: Iterable[Record]) -> list[Row]:
    """The rows that the leaderboard shows: every pair, and stale rows only where nothing newer replaced them."""
    return latest(pairs(records, current_sources()))


def row_of(records: Iterable[Record], setting: Setting, stack: str, reference: str) -> Row:
    """The current row of a pair on this machine; ``setting`` has its steps. Raises NoRecord where there is none."""
    machine = fingerprint(setting.device, setting.threads).key
    wanted = setting.model_dump(exclude={"data"})
    fitting = [
        row
        for row in rows(records)
        if (row.stack, row.reference, row.machine.key) == (stack, reference, machine)
        and wanted.items() <= row.conditions.model_dump().items()
    ]
    if not fitting:
        raise NoRecord(f"no record of {stack} against {reference} on {setting.baseline}; measure it again")
    return max(fitting, key=lambda row: (not row.stale, row.newest))


def as_dict(row: Row) -> dict[str, Any]:
    """The row as JSON values, without the raw samples; None stands for what is not finite."""
    return {
        "stack": row.stack,
        "reference": row.reference,
        "conditions": row.conditions.model_dump(),
        "machine": row.machine.name,
        "machine_key": row.machine.key,
        "pairing": row.pairing,
        "newest": row.newest,
        "records": list(row.records),
        "seeds": list(row.seeds),
        "failures": [vars(each) for each in row.failures],
        "stale": list(row.stale),
        "notes": list(row.notes),
        "metrics": {name: _value_as_dict(value) for name, value in row.metrics.items()},
        "setup_reference_steps": interval_as_dict(row.setup),
        "seeds_reaching_quality": row.reached,
        "detectable_effect": finite(row.detectable_effect),
        "probes": {name: interval_as_dict(interval) for name, interval in row.probes.items()},
    }


def _value_as_dict(value: Value) -> dict[str, Any]:
    return {
        "kind": value.kind,
        "ratio": finite(value.number),
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
    return {name: finite(each) for name, each in ends.items()} | {
        "level": interval.level, "method": interval.method, "n": interval.n,
    }  # fmt: skip


def finite(number: float) -> float | None:
    """The number, or None where it is not finite: JSON has no such numbers."""
    return number if math.isfinite(number) else None
