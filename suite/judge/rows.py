"""Views over records: every pair (reference, contender) as one row with its seeds, failures, ratios and intervals.

Pure functions of records. Replicates are pooled into a row only under equal conditions, machine, harness, baseline and
technique code, and pairing; interleaved and sequential timings are never mixed.

Every ratio is a *cost*, contender over reference: below 1 is better, a speedup is its inverse. The contenders of a
replicate may have different numbers of steps and pass through the same rounds, so the unit of progress is the
*reference step*: a contender of half the steps makes two with each of its own. Training cost is the time per such step.

A step's cost may change during a run (growth, pruning, freezing), so one median over all rounds would price only the
middle of it. Rounds after warm-up are cut into SEGMENTS; each is priced at the exponential of its median log ratio,
which keeps the hiccups of a shared machine out. What the medians leave out is still charged or shown: the excess of
warm-up rounds (compilation) belongs to the set-up cost, and a row whose summed times exceed its medians says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from suite.contract.sources import Sources, current_sources
from suite.judge.statistics import (
    QUALITY_TOLERANCE,
    EqualCost,
    Floats,
    Interval,
    TimeToQuality,
    combined_interval,
    detectable_effect,
    median,
    quality_at_equal_cost,
    quality_ratio_interval,
    replicate_interval,
    round_log_ratios,
    time_to_quality,
    time_to_quality_interval,
    warmup_rounds,
)
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import COUNTS, SAME_COST, Conditions, Energy, Machine, Outcome, Record, Status
from suite.record.store import NoRecord

SEGMENTS = 5
HIDDEN_COST = 0.02  # a mean this much above the segment medians, beyond its interval, is worth a note

Kind = Literal["measured", "exact", "missed", "unavailable"]


@dataclass(frozen=True)
class Value:
    """A cost ratio, contender over reference, and where it comes from.

    ``log`` is the interval of its logarithm where it was measured; exact counts have none. ``missed`` is a
    time to quality of a contender that did not reach it. ``reference`` and ``contender`` are the medians over seeds of
    the two quantities themselves, in the unit of the metric's name.
    """

    kind: Kind
    number: float = math.nan
    log: Interval | None = None
    reason: str = ""  # why there is no number
    note: str = ""  # what the number does not show
    reference: float | None = None
    contender: float | None = None

    @property
    def known(self) -> bool:
        return self.kind in ("measured", "exact")

    @property
    def interval(self) -> Interval | None:
        """Of the cost ratio."""
        return self.log.ratio() if self.log else None

    @property
    def speedup(self) -> Interval | None:
        """The inverse ratio and its interval."""
        return self.log.speedup() if self.log else None


def unavailable(reason: str) -> Value:
    return Value("unavailable", reason=reason)


@dataclass(frozen=True)
class Failure:
    """A seed that gives no numbers. ``stack`` is the side that failed."""

    seed: int
    stack: str
    status: Status
    reason: str


# one seed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replicate:
    """One seed of a pair: what both sides cost and reached.

    ``step_log_ratios`` [rounds after warm-up]: ln of the contender's time per own step over the reference's.
    ``costs`` [evaluations]: what the contender had spent at each, in reference steps, without set-up.
    ``setup_cost``: what its set-up took more than the reference's, in reference steps, the excess of warm-up rounds
    included; negative when it took less. ``hidden_log_cost``: ln of summed over segment-median training cost.
    """

    seed: int
    reference: Outcome
    contender: Outcome
    warmup: int
    step_log_ratios: Floats
    training_log_ratio: float
    training_log_samples: Floats
    costs: Floats
    setup_cost: float
    hidden_log_cost: float
    reference_step_s: float

    @cached_property
    def reference_curve(self) -> Floats:
        return curve(self.reference)

    @cached_property
    def contender_curve(self) -> Floats:
        return curve(self.contender)

    @property
    def total_cost_ratio(self) -> float:
        """Set-up and training, over the reference's training."""
        assert self.reference.steps
        return math.exp(self.training_log_ratio) + self.setup_cost / self.reference.steps

    def time_to_quality(self) -> TimeToQuality:
        return time_to_quality(self.reference_curve, self.contender_curve, self.costs, self.setup_cost)

    def at_equal_cost(self) -> tuple[EqualCost, str] | None:
        """Losses when the reference's budget is spent, and how they were obtained; None when nothing was by then."""
        final = float(self.reference_curve[-1, 1])
        if self.contender.equal_time:
            return EqualCost(self.contender.equal_time.loss, final, True), "schedule fitted to the budget"
        if abs(self.total_cost_ratio - 1) <= SAME_COST:
            return EqualCost(float(self.contender_curve[-1, 1]), final, True), "equal steps are equal time here"
        found = quality_at_equal_cost(self.reference_curve, self.contender_curve, self.costs, self.setup_cost)
        if found is None:
            return None
        return found, "finished before the budget" if found.decayed else "undecayed: read off the curve"


def curve(contender: Outcome) -> Floats:
    """(step, test loss) [evaluations, 2]."""
    return np.array([(each.step, each.loss) for each in contender.curve], dtype=np.float64).reshape(-1, 2)


def replicate_of(record: Record, index: int) -> Replicate:
    """Outcome ``index`` of a record against its reference, both with status ok.

    Raises ValueError with one sentence on samples that give no ratio.
    """
    reference, contender = record.reference, record.contenders[index]
    if not (reference.steps and contender.steps):
        raise ValueError("the number of steps was not recorded")
    if reference.setup_s is None or contender.setup_s is None:
        raise ValueError("the set-up time was not recorded")
    rounds = min(len(reference.block_s), len(contender.block_s))
    a_s, b_s = (np.array(each.block_s[:rounds], dtype=np.float64) for each in (reference, contender))
    a_steps, b_steps = (np.array(each.block_steps[:rounds], dtype=np.float64) for each in (reference, contender))
    if a_s.shape != a_steps.shape or b_s.shape != b_steps.shape or not (a_steps > 0).all() or not (b_steps > 0).all():
        raise ValueError("block times and block steps do not fit together")
    warmup = warmup_rounds({"reference": a_s / a_steps, "contender": b_s / b_steps})
    d = round_log_ratios(a_s / a_steps, b_s / b_steps)
    progress = math.log(contender.steps / reference.steps)

    segments = _segments(warmup, rounds)
    pace = np.concatenate([np.full(len(each), median(d[each])) for each in segments])
    rate = np.concatenate([np.full(warmup, math.exp(pace[0])), np.exp(pace)]) * math.exp(progress)
    share = b_steps.sum(axis=1) / contender.steps
    spent = np.concatenate([[0.0], np.cumsum(rate * share)]) * reference.steps
    training = math.log(float((rate * share).sum() / share.sum()))
    around = d[warmup:] - pace
    steps = np.concatenate([[0.0], np.cumsum(b_steps.sum(axis=1))])

    first = segments[0]
    step_s = median(a_s[warmup:].sum(axis=1) / a_steps[warmup:].sum(axis=1))
    late = slice(warmup, None)
    summed = math.log(b_s[late].sum() / b_steps[late].sum()) - math.log(a_s[late].sum() / a_steps[late].sum())
    priced = math.log(float((np.exp(pace) * share[late]).sum() / share[late].sum()))
    made = Replicate(
        seed=record.seed,
        reference=reference,
        contender=contender,
        warmup=warmup,
        step_log_ratios=d[warmup:],
        training_log_ratio=training,
        training_log_samples=around - median(around) + training,
        costs=np.interp([each.step for each in contender.curve], steps, spent),
        setup_cost=(
            contender.setup_s + _excess_s(b_s, b_steps, first) - reference.setup_s - _excess_s(a_s, a_steps, first)
        )
        / step_s,
        hidden_log_cost=summed - priced,
        reference_step_s=step_s,
    )
    derived = (made.training_log_ratio, made.setup_cost, made.hidden_log_cost, step_s, *made.costs)
    if not np.isfinite(derived).all():
        raise ValueError("its times are not those of a run")
    return made


def _segments(warmup: int, rounds: int) -> list[np.ndarray]:
    """The rounds after warm-up, in order, in at most SEGMENTS nearly equal parts of at least two where possible."""
    left = np.arange(warmup, rounds)
    return np.array_split(left, max(1, min(SEGMENTS, len(left) // 2)))


def _excess_s(times_s: Floats, steps: Floats, first: np.ndarray) -> float:
    """What the rounds before the first segment took beyond that segment's median pace."""
    pace = median(times_s[first].sum(axis=1) / steps[first].sum(axis=1))
    warmup = slice(0, first[0])
    return float(times_s[warmup].sum() - pace * steps[warmup].sum())


# a row --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contender against one reference under one set of conditions, over seeds.

    ``metrics`` by name: ``step_time`` (of an own step), ``training_time`` (per reference step of progress),
    ``time_to_quality`` (with set-up), ``loss`` (final test loss, equal steps), ``loss_at_equal_time``, ``energy``
    (of the training, joules), the counters' names (``peak_tensor_bytes``, ``flops``, ...), ``peak.<kind>``,
    ``training_flops``, the process' and CUDA's peaks, ``final.<metric>`` for the baseline's further test metrics.
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

    @property
    def failed(self) -> bool:
        return not self.replicates

    @property
    def board(self) -> tuple[str, str, str]:
        """Rows with the same one may be ranked together."""
        return self.conditions.key, self.machine.key, self.reference


def pairs(records: Iterable[Record], current: Sources | None = None) -> list[Row]:
    """One row per (reference, contender) and set of equal conditions and sources, in order of first appearance.

    Of several records of one seed the newest counts. With ``current``, rows of other code are marked stale.
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
    """Without the stale rows that a current or newer one has replaced."""
    chosen: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (not row.stale, row.newest)):
        chosen[row.stack, row.pairing, *row.board] = row
    return sorted(chosen.values(), key=lambda row: (row.board, row.stack))


def _with_known_data(records: Sequence[Record]) -> list[Record]:
    """A record in which nothing got as far as its data belongs to the conditions that are otherwise the same."""

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
    missed: list[TimeToQuality] = []
    for record, position in members:
        contender, reference = record.contenders[position], record.reference
        broken = next((each for each in (contender, reference) if each.status != "ok"), None)
        if broken:
            failures.append(Failure(record.seed, broken.stack, broken.status, broken.reason))
            if contender.status == "diverged" and reference.status == "ok" and reference.curve and reference.steps:
                missed.append(TimeToQuality(reference.curve[-1].loss, reference.steps, math.inf, math.inf))
            continue
        try:
            replicates.append(replicate_of(record, position))
        except (ValueError, ArithmeticError) as error:
            failures.append(Failure(record.seed, contender.stack, "failed", f"its samples give no ratio: {error}"))
    step = combined_interval([each.step_log_ratios for each in replicates]) if replicates else None
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
        metrics=_metrics(replicates, missed, step),
        setup=replicate_interval([each.setup_cost for each in replicates]) if replicates else None,
        probes=_probes(replicates),
        reached=sum(_gap(each) <= QUALITY_TOLERANCE for each in replicates),
        detectable_effect=detectable_effect(step) if step else math.inf,
        notes=_notes(replicates, newest.pairing),
        stale=current.changes(_sources(newest, sources)) if current else (),
    )


def _sources(record: Record, techniques: Mapping[str, str]) -> Sources:
    return Sources(record.harness_sha256, {record.conditions.baseline: record.baseline_sha256}, techniques)


def _gap(each: Replicate) -> float:
    """ln of the contender's final loss over the reference's, infinite where either is no loss."""
    try:
        ours, theirs = each.contender_curve[-1, 1], each.reference_curve[-1, 1]
    except IndexError:
        return math.inf
    return math.log(ours / theirs) if 0 < ours < math.inf and 0 < theirs < math.inf else math.inf


def _notes(replicates: Sequence[Replicate], pairing: str) -> tuple[str, ...]:
    found = ["timed one after the other, not interleaved"] if pairing == "sequential" else []
    if len(replicates) == 1:
        found.append("one seed: the interval cannot see how processes differ")
    if len(replicates) > 1:
        hidden = replicate_interval([each.hidden_log_cost for each in replicates])
        if hidden.low > 0 and hidden.estimate > HIDDEN_COST:
            more = math.expm1(hidden.estimate)
            found.append(f"rare expensive steps: summed training time is {more:.0%} above what the medians price")
    return tuple(found)


# metrics ------------------------------------------------------------------------------------------------------------


def _metrics(
    replicates: Sequence[Replicate], missed: Sequence[TimeToQuality], step: Interval | None
) -> dict[str, Value]:
    if not replicates or step is None:
        diverged = Value("missed", reason="every seed diverged") if missed else unavailable("no seed finished")
        return {"time_to_quality": diverged}
    training = combined_interval([each.training_log_samples for each in replicates])
    first_s = [each.reference_step_s for each in replicates]
    ratios = [each.step_log_ratios for each in replicates]
    own_s = [s * math.exp(median(d)) for s, d in zip(first_s, ratios, strict=True)]
    per_progress_s = [s * math.exp(each.training_log_ratio) for s, each in zip(first_s, replicates, strict=True)]
    values = {
        "step_time": _measured(step, first_s, own_s),
        "training_time": _measured(training, first_s, per_progress_s),
        "time_to_quality": _attempt(lambda: _time_to_quality(replicates, missed)),
        "loss": _attempt(lambda: _final_loss(replicates)),
        "loss_at_equal_time": _attempt(lambda: _loss_at_equal_time(replicates)),
        "energy": _energy(replicates),
        "processor_time": _paired(replicates, lambda each: each.cpu_s, "not recorded"),
    }
    for name in ("process_peak_bytes", "cuda_allocated_peak_bytes", "cuda_reserved_peak_bytes"):
        reason = "no CUDA device" if name.startswith("cuda") else "not readable on this machine"
        values[name] = _paired(replicates, attrgetter(f"memory.{name}"), reason)
    for name in COUNTS:
        values[name] = _counted(replicates, attrgetter(f"counters.{name}"))
    kinds = {kind for each in replicates for side in _sides(each) for kind in _kinds(side)}
    for kind in sorted(kinds):
        values[f"peak.{kind}"] = _counted(replicates, _peak_of(kind))
    values["training_flops"] = _counted(replicates, lambda each: (_flops(each) * each.steps) if each.steps else None)
    if any(side.counters and side.counters.uncounted_operators for each in replicates for side in _sides(each)):
        for name in ("flops", "training_flops"):
            values[name] = replace(values[name], note="some operators have no FLOP formula: lower bounds")
    for name in sorted({name for each in replicates for name in _final(each.contender)}):
        values[f"final.{name}"] = _paired(replicates, _final_of(name), "not recorded")
    return values


def _attempt(metric: Callable[[], Value]) -> Value:
    """The estimators raise ValueError, with the reason, on what has no such number."""
    try:
        return metric()
    except (ValueError, ArithmeticError) as error:
        return unavailable(str(error))


def _measured(log: Interval, reference: Sequence[float], contender: Sequence[float], note: str = "") -> Value:
    return Value(
        "measured", math.exp(log.estimate), log, note=note,
        reference=median(reference), contender=median(contender),
    )  # fmt: skip


def _time_to_quality(replicates: Sequence[Replicate], missed: Sequence[TimeToQuality]) -> Value:
    _curves(replicates)
    results = [*(each.time_to_quality() for each in replicates), *missed]
    interval = time_to_quality_interval(results)
    if interval is None:
        gap = float(np.mean([each.log_quality_gap for each in results]))
        seeds = f"in {len(missed)} of {len(results)} seeds" if missed else ""
        return Value("missed", reason=f"diverged {seeds}" if missed else f"ended {math.expm1(gap):.1%} worse")
    return _measured(interval, [each.reference_cost for each in results], [each.contender_cost for each in results])


def _final_loss(replicates: Sequence[Replicate]) -> Value:
    theirs, ours = ([side[-1, 1] for side in sides] for sides in _curves(replicates))
    return _measured(quality_ratio_interval(theirs, ours), theirs, ours)


def _curves(replicates: Sequence[Replicate]) -> tuple[list[Floats], list[Floats]]:
    sides = [each.reference_curve for each in replicates], [each.contender_curve for each in replicates]
    if any(len(each) == 0 or not each[-1, 1] > 0 for side in sides for each in side):
        raise ValueError("no final test loss, positive and finite, was recorded")
    return sides


def _loss_at_equal_time(replicates: Sequence[Replicate]) -> Value:
    _curves(replicates)
    found = [each.at_equal_cost() for each in replicates]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        raise ValueError("the reference's budget was spent before the first evaluation")
    theirs, ours = [each.reference_quality for each, _ in known], [each.quality for each, _ in known]
    note = "; ".join(sorted({how for _, how in known}))
    return _measured(quality_ratio_interval(theirs, ours), theirs, ours, note)


def _energy(replicates: Sequence[Replicate]) -> Value:
    """Energy of the whole training: joules per step times steps."""
    for each in replicates:
        for side in reversed(_sides(each)):  # the contender's own reason first
            if side.energy.joules_per_step is None:
                return unavailable(side.energy.reason or "not measured")
    note = "; ".join(sorted({_scope(each.contender.energy) for each in replicates}))
    return _paired(replicates, lambda each: (each.energy.joules_per_step or 0) * (each.steps or 0), "", note)


def _scope(energy: Energy) -> str:
    bound = f", error at most {energy.relative_error_bound:.1%}" if energy.relative_error_bound is not None else ""
    return f"{energy.method or 'counter'}: {energy.scope or 'scope not stated'}{bound}"


def _paired(
    replicates: Sequence[Replicate], quantity: Callable[[Outcome], float | None], reason: str, note: str = ""
) -> Value:
    """Ratio of something measured once per run, over seeds."""
    theirs = [quantity(each.reference) for each in replicates]
    ours = [quantity(each.contender) for each in replicates]
    a, b = [x for x in theirs if x is not None], [x for x in ours if x is not None]
    if len(a) < len(theirs) or len(b) < len(ours):
        return unavailable(reason)
    return _attempt(lambda: _measured(quality_ratio_interval(a, b), a, b, note))


def _counted(replicates: Sequence[Replicate], count: Callable[[Outcome], int | None]) -> Value:
    """Ratio of an exact count. Seeds agree unless the technique's work depends on its data; then their median."""
    if any(side.counters is None for each in replicates for side in _sides(each)):
        return unavailable("not counted")
    theirs = [number for each in replicates if (number := count(each.reference)) is not None]
    ours = [number for each in replicates if (number := count(each.contender)) is not None]
    if len(theirs) < len(replicates) or len(ours) < len(replicates):
        return unavailable("not counted")
    a, b = median(theirs), median(ours)
    if a == 0:
        return replace(unavailable("the reference has none"), reference=a, contender=b)
    notes = ["differs between seeds: median"] if len(set(zip(theirs, ours, strict=True))) > 1 else []
    if any(side.counters and side.counters.compiled for each in replicates for side in _sides(each)):
        notes.append("counts what the eager operators do, though timed compiled")
    return Value("exact", b / a, note="; ".join(notes), reference=a, contender=b)


def _sides(each: Replicate) -> tuple[Outcome, Outcome]:
    return each.reference, each.contender


def _flops(side: Outcome) -> int:
    return side.counters.flops if side.counters else 0


def _peak_of(kind: str) -> Callable[[Outcome], int | None]:
    return lambda side: side.counters.peak_by_kind.get(kind, 0) if side.counters else None


def _final_of(name: str) -> Callable[[Outcome], float | None]:
    return lambda side: _final(side).get(name)


def _kinds(side: Outcome) -> Iterable[str]:
    return side.counters.peak_by_kind if side.counters else ()


def _final(side: Outcome) -> Mapping[str, float]:
    return side.curve[-1].metrics if side.curve else {}


def _probes(replicates: Sequence[Replicate]) -> dict[str, Interval]:
    """Means over the seeds in which the probe is finite."""
    samples: dict[str, list[float]] = defaultdict(list)
    for each in replicates:
        for name, value in each.contender.probes.items():
            if math.isfinite(value):
                samples[name].append(value)
    return {name: replicate_interval(values) for name, values in sorted(samples.items())}


# for commands -------------------------------------------------------------------------------------------------------


def rows(records: Iterable[Record]) -> list[Row]:
    """What the leaderboard shows: every pair, stale ones only where nothing newer replaced them."""
    return latest(pairs(records, current_sources()))


def row_of(records: Iterable[Record], setting: Setting, stack: str, reference: str) -> Row:
    """The current row of a pair on this machine; ``setting`` has its steps. Raises NoRecord when none is of it."""
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
    """JSON values: everything but the raw samples. What is not finite is None."""
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
        "setup_reference_steps": _interval_as_dict(row.setup),
        "seeds_reaching_quality": row.reached,
        "detectable_effect": _finite(row.detectable_effect),
        "probes": {name: _interval_as_dict(interval) for name, interval in row.probes.items()},
    }


def _value_as_dict(value: Value) -> dict[str, Any]:
    return {
        "kind": value.kind,
        "ratio": _finite(value.number),
        "interval": _interval_as_dict(value.interval),
        "reference": value.reference,
        "contender": value.contender,
        "reason": value.reason,
        "note": value.note,
    }


def _interval_as_dict(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    ends = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: _finite(each) for name, each in ends.items()} | {
        "level": interval.level, "method": interval.method, "n": interval.n,
    }  # fmt: skip


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
