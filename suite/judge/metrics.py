"""The registry of metrics: what is reported of a pair, how it is read from records, and where it is used.

Adding a metric is one entry in REGISTRY; putting it on the board, into the interaction of stacks or into the history is
one field of that entry. Boards, exports, claims, interactions, histories and the repetition of records follow the
registry and keep no list of their own. A new counter needs no entry: every one of
:data:`suite.record.schema.COUNTS` is a metric.

Every metric is a cost ratio, contender over reference: below 1 is better, a speedup is its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Literal

import numpy as np

from suite.judge.replicate import Replicate
from suite.judge.statistics import (
    Floats,
    Interval,
    TimeToQuality,
    combined_interval,
    median,
    quality_ratio_interval,
    time_to_quality_interval,
)
from suite.record.schema import COUNTS, Count, Energy, Outcome

ValueKind = Literal["measured", "exact", "missed", "unavailable"]
MetricKind = Literal["counted", "learned", "timed", "measured"]
"""``counted``: equal code gives equal numbers. ``learned``: what the model learned in equal steps; equal code gives it
again on one machine. ``timed``: depends on how long the training took. ``measured``: read from the machine, where it
has such a figure, and unavailable elsewhere."""

Direction = Literal["lower", "higher", "none"]
"""Which direction is better in the number that is shown. ``lower``: the cost ratio is shown. ``higher``: the speedup,
its inverse. ``none``: the metric describes, and neither is better."""

ARROWS: Mapping[Direction, str] = {"lower": "↓", "higher": "↑", "none": ""}

Quantity = Callable[[Outcome], float | None]
"""What one run cost or reached; None where the record does not have it."""


@dataclass(frozen=True)
class Value:
    """A cost ratio, contender over reference, and where it comes from.

    ``log`` is the interval of its logarithm where it was measured; exact counts have none. ``missed`` is a
    time to quality of a contender that did not reach it. ``reference`` and ``contender`` are the medians over seeds of
    the two quantities themselves, in the unit of the metric.
    """

    kind: ValueKind
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
        """The interval of the cost ratio."""
        return self.log.ratio() if self.log else None

    @property
    def speedup(self) -> Interval | None:
        """The interval of the inverse ratio."""
        return self.log.speedup() if self.log else None


def unavailable(reason: str) -> Value:
    return Value("unavailable", reason=reason)


@dataclass(frozen=True)
class Seeds:
    """The seeds of a row: those that finished, and the missed qualities of those whose contender diverged."""

    replicates: Sequence[Replicate]
    diverged: Sequence[TimeToQuality] = ()


@dataclass(frozen=True)
class Uses:
    """Where a metric is used beyond tables of all metrics.

    Attributes:
        column: its place among the board's columns, from left to right; 0 where it is no column.
        heading: the column's title, where the metric's own is too long.
        headline: whether it stands in a technique's summary on the page.
        in_stacks: whether the interaction of stacks is computed for it.
        in_history: whether its changes over time are looked for.
    """

    column: int = 0
    heading: str = ""
    headline: bool = False
    in_stacks: bool = False
    in_history: bool = False


@dataclass(frozen=True)
class Metric:
    """A metric: what it is, how it is read, where it is used.

    Attributes:
        unit: of the two quantities behind the ratio.
        log_cost_ratio: reads a seed's log cost ratio. Raises ValueError where the seed has none.
        value: reads the row's value over all seeds.
        quantity: reads the quantity of one run; None where only a pair has the metric.
        round_samples: reads the log ratios of a seed's rounds, whose median is the seed's; None where rounds have none.
        quality: whether it judges how well the model learned.
    """

    name: str
    title: str
    unit: str
    kind: MetricKind
    log_cost_ratio: Callable[[Replicate], float]
    value: Callable[[Seeds], Value]
    quantity: Quantity | None = None
    round_samples: Callable[[Replicate], Floats] | None = None
    direction: Direction = "lower"
    quality: bool = False
    uses: Uses = Uses()

    @property
    def exact(self) -> bool:
        """Whether it is a count, without noise."""
        return self.kind == "counted"

    @property
    def repeatable(self) -> bool:
        """Whether one run of each side gives the number that every other run would give."""
        return self.kind in ("counted", "learned")

    @property
    def heading(self) -> str:
        return self.uses.heading or self.title

    @property
    def arrow(self) -> str:
        return ARROWS[self.direction]


@dataclass(frozen=True)
class Family:
    """Metrics whose names are known only from the records: ``prefix`` and a name that occurs there."""

    prefix: str
    names: Callable[[Replicate], Iterable[str]]
    member: Callable[[str], Metric]


# readers ------------------------------------------------------------------------------------------------------------


def _attempt(read: Callable[[], Value]) -> Value:
    """Read a value; it is unavailable where the estimators raise ValueError, which has the reason."""
    try:
        return read()
    except (ValueError, ArithmeticError) as error:
        return unavailable(str(error))


def _value_of(log: Interval, reference: Sequence[float], contender: Sequence[float], note: str = "") -> Value:
    return Value(
        "measured", math.exp(log.estimate), log, note=note,
        reference=median(reference), contender=median(contender),
    )  # fmt: skip


def _log_ratio(quantity: Quantity) -> Callable[[Replicate], float]:
    def read(each: Replicate) -> float:
        theirs, ours = (quantity(side) for side in each.sides)
        if theirs is None or ours is None or not (0 < theirs < math.inf and 0 < ours < math.inf):
            raise ValueError("a log ratio needs two positive and finite numbers")
        return math.log(ours / theirs)

    return read


def _timed(
    name: str,
    title: str,
    round_samples: Callable[[Replicate], Floats],
    log_cost_ratio: Callable[[Replicate], float],
    uses: Uses,
) -> Metric:
    """Define a time that every round of a replicate measures, in seconds per step of the reference."""

    def value(seeds: Seeds) -> Value:
        reference_s = [each.reference_step_s for each in seeds.replicates]
        ratios = [math.exp(log_cost_ratio(each)) for each in seeds.replicates]
        contender_s = [s * ratio for s, ratio in zip(reference_s, ratios, strict=True)]
        return _value_of(
            combined_interval([round_samples(each) for each in seeds.replicates]), reference_s, contender_s
        )

    return Metric(name, title, "s", "timed", log_cost_ratio, value, round_samples=round_samples, uses=uses)


def _per_run(
    name: str,
    title: str,
    unit: str,
    kind: MetricKind,
    quantity: Quantity,
    reason: str,
    *,
    direction: Direction = "lower",
    quality: bool = False,
    uses: Uses = Uses(),
) -> Metric:
    """Define what is measured once per run; it is unavailable for ``reason`` where a run does not have it."""
    return Metric(
        name, title, unit, kind, _log_ratio(quantity), lambda seeds: _paired(seeds.replicates, quantity, reason),
        quantity, direction=direction, quality=quality, uses=uses,
    )  # fmt: skip


def _paired(replicates: Sequence[Replicate], quantity: Quantity, reason: str, note: str = "") -> Value:
    theirs = [quantity(each.reference) for each in replicates]
    ours = [quantity(each.contender) for each in replicates]
    a, b = [x for x in theirs if x is not None], [x for x in ours if x is not None]
    if len(a) < len(theirs) or len(b) < len(ours):
        return unavailable(reason)
    return _attempt(lambda: _value_of(quality_ratio_interval(a, b), a, b, note))


def _counted(
    name: str,
    title: str,
    unit: str,
    quantity: Quantity,
    *,
    direction: Direction = "lower",
    uses: Uses = Uses(),
) -> Metric:
    """Define an exact count of one step or of a whole run."""
    return Metric(
        name, title, unit, "counted", _log_ratio(quantity), lambda seeds: _count_ratio(seeds.replicates, quantity),
        quantity, direction=direction, uses=uses,
    )  # fmt: skip


def _count_ratio(replicates: Sequence[Replicate], quantity: Quantity) -> Value:
    """The ratio of a count. Seeds differ where the work depends on the data; then it is the ratio of their medians."""
    theirs = [number for each in replicates if (number := quantity(each.reference)) is not None]
    ours = [number for each in replicates if (number := quantity(each.contender)) is not None]
    if len(theirs) < len(replicates) or len(ours) < len(replicates):
        return unavailable("not counted")
    a, b = median(theirs), median(ours)
    if a == 0:
        return replace(unavailable("the reference has none"), reference=a, contender=b)
    notes = ["differs between seeds: median"] if len(set(zip(theirs, ours, strict=True))) > 1 else []
    if any(side.counters and side.counters.compiled for each in replicates for side in each.sides):
        notes.append("counts what the eager operators do, though timed compiled")
    return Value("exact", b / a, note="; ".join(notes), reference=a, contender=b)


def _with_uncounted(metric: Metric) -> Metric:
    """Let the value of FLOPs say where operators were left out."""

    def value(seeds: Seeds) -> Value:
        sides = [side for each in seeds.replicates for side in each.sides]
        if any(side.counters and side.counters.uncounted_operators for side in sides):
            return replace(metric.value(seeds), note="some operators have no FLOP formula: lower bounds")
        return metric.value(seeds)

    return replace(metric, value=value)


COUNTER_USES: Mapping[str, Uses] = {
    "peak_tensor_bytes": Uses(40, "peak tensors", headline=True, in_stacks=True, in_history=True),
    "flops": Uses(in_history=True),
}
"""The counters that are used beyond tables of all metrics."""


def _counter(name: str, count: Count) -> Metric:
    metric = _counted(
        name, count.title, count.unit, lambda side: getattr(side.counters, name) if side.counters else None,
        direction="lower" if count.cost else "none", uses=COUNTER_USES.get(name, Uses()),
    )  # fmt: skip
    return _with_uncounted(metric) if name == "flops" else metric


def _peak(kind: str) -> Metric:
    return _counted(
        f"peak.{kind}", f"{kind.replace('_', ' ')} at the peak", "B",
        lambda side: side.counters.peak_by_kind.get(kind, 0) if side.counters else None,
    )  # fmt: skip


def _training_flops(side: Outcome) -> float | None:
    return side.counters.flops * side.steps if side.counters and side.steps else None


def _final(name: str) -> Metric:
    """Define a further test metric of the baseline; only its name says which direction is better."""
    return _per_run(
        f"final.{name}", name, "", "learned", lambda side: _final_scores(side).get(name), "not recorded",
        direction="none", quality=True,
    )  # fmt: skip


def _final_scores(side: Outcome) -> Mapping[str, float]:
    return side.curve[-1].metrics if side.curve else {}


def _final_loss(side: Outcome) -> float | None:
    return side.curve[-1].loss if side.curve else None


def _losses(replicates: Sequence[Replicate]) -> tuple[list[float], list[float]]:
    """Final losses of the references and of the contenders. Raises ValueError where one is none."""
    theirs, ours = ([_final_loss(each.sides[side]) or math.nan for each in replicates] for side in (0, 1))
    if not all(loss > 0 for loss in (*theirs, *ours)):
        raise ValueError("no final test loss, positive and finite, was recorded")
    return theirs, ours


def _loss(seeds: Seeds) -> Value:
    theirs, ours = _losses(seeds.replicates)
    return _value_of(quality_ratio_interval(theirs, ours), theirs, ours)


def _loss_at_equal_time(seeds: Seeds) -> Value:
    _losses(seeds.replicates)
    read = [each.at_equal_cost() for each in seeds.replicates]
    known = [each for each in read if each is not None]
    if len(known) < len(read):
        raise ValueError("the reference's budget was spent before the first evaluation")
    theirs, ours = [each.reference_quality for each, _ in known], [each.quality for each, _ in known]
    note = "; ".join(sorted({how for _, how in known}))
    return _value_of(quality_ratio_interval(theirs, ours), theirs, ours, note)


def _log_loss_at_equal_time(each: Replicate) -> float:
    _losses([each])
    read = each.at_equal_cost()
    if read is None:
        raise ValueError("the reference's budget was spent before the first evaluation")
    return read[0].log_ratio


def _time_to_quality(seeds: Seeds) -> Value:
    _losses(seeds.replicates)
    results = [*(each.time_to_quality() for each in seeds.replicates), *seeds.diverged]
    interval = time_to_quality_interval(results)
    if interval is None:
        gap = float(np.mean([each.log_quality_gap for each in results]))
        in_seeds = f"in {len(seeds.diverged)} of {len(results)} seeds" if seeds.diverged else ""
        return Value("missed", reason=f"diverged {in_seeds}" if in_seeds else f"ended {math.expm1(gap):.1%} worse")
    return _value_of(interval, [each.reference_cost for each in results], [each.contender_cost for each in results])


def _joules(side: Outcome) -> float | None:
    """The energy of the whole training."""
    return None if side.energy.joules_per_step is None else side.energy.joules_per_step * (side.steps or 0)


def _energy(seeds: Seeds) -> Value:
    for each in seeds.replicates:
        for side in reversed(each.sides):  # the contender's own reason first
            if side.energy.joules_per_step is None:
                return unavailable(side.energy.reason or "not measured")
    note = "; ".join(sorted({_scope(each.contender.energy) for each in seeds.replicates}))
    return _paired(seeds.replicates, _joules, "", note)


def _scope(energy: Energy) -> str:
    bound = f", error at most {energy.relative_error_bound:.1%}" if energy.relative_error_bound is not None else ""
    return f"{energy.method or 'counter'}: {energy.scope or 'scope not stated'}{bound}"


# the registry -------------------------------------------------------------------------------------------------------

REGISTRY: tuple[Metric | Family, ...] = (
    _timed(
        "step_time", "step time", attrgetter("step_log_ratios"), lambda each: median(each.step_log_ratios),
        Uses(20, headline=True, in_stacks=True, in_history=True),
    ),
    _timed(
        "training_time", "training time", attrgetter("training_log_samples"), attrgetter("training_log_ratio"),
        Uses(30, in_stacks=True, in_history=True),
    ),
    Metric(
        "time_to_quality", "time to quality", "reference steps", "timed",
        lambda each: each.time_to_quality().log_cost_ratio, _time_to_quality,
        direction="higher", quality=True, uses=Uses(10, headline=True, in_stacks=True),
    ),
    Metric(
        "loss", "loss, equal steps", "", "learned", _log_ratio(_final_loss), _loss, _final_loss,
        quality=True, uses=Uses(80, headline=True, in_stacks=True, in_history=True),
    ),
    Metric(
        "loss_at_equal_time", "loss, equal time", "", "timed", _log_loss_at_equal_time, _loss_at_equal_time,
        quality=True, uses=Uses(90),
    ),
    Metric("energy", "energy", "J", "measured", _log_ratio(_joules), _energy, _joules, uses=Uses(70)),
    _per_run("processor_time", "processor time", "s", "timed", attrgetter("cpu_s"), "not recorded"),
    _per_run(
        "process_peak_bytes", "process peak", "B", "measured", attrgetter("memory.process_peak_bytes"),
        "not readable on this machine", uses=Uses(50),
    ),
    _per_run(
        "cuda_allocated_peak_bytes", "CUDA peak", "B", "measured", attrgetter("memory.cuda_allocated_peak_bytes"),
        "no CUDA device", uses=Uses(60),
    ),
    _per_run(
        "cuda_reserved_peak_bytes", "CUDA peak, reserved", "B", "measured",
        attrgetter("memory.cuda_reserved_peak_bytes"), "no CUDA device",
    ),
    *(_counter(name, count) for name, count in COUNTS.items()),
    Family("peak.", lambda each: {kind for side in each.sides if side.counters for kind in side.counters.peak_by_kind},
           _peak),
    _with_uncounted(_counted("training_flops", "FLOPs of the training", "FLOP", _training_flops,
                             uses=Uses(100, "FLOPs"))),
    Family("final.", lambda each: _final_scores(each.contender), _final),
)  # fmt: skip
"""In the order of tables of all metrics.

``step_time`` is of an own step, ``training_time`` per reference step of progress, ``time_to_quality`` with set-up,
``loss`` the final test loss after equal steps, ``energy`` of the whole training.
"""

METRICS: Mapping[str, Metric] = {each.name: each for each in REGISTRY if isinstance(each, Metric)}
FAMILIES: tuple[Family, ...] = tuple(each for each in REGISTRY if isinstance(each, Family))

COLUMNS: tuple[Metric, ...] = tuple(
    sorted((each for each in METRICS.values() if each.uses.column), key=lambda each: each.uses.column)
)
"""The board's columns from left to right."""

HEADLINES: tuple[Metric, ...] = tuple(
    sorted((each for each in COLUMNS if each.uses.headline), key=lambda each: each.exact)
)
"""The numbers of a technique's summary: those with noise, then those that are counted."""

COUNTERS: tuple[Metric, ...] = tuple(METRICS[name] for name in COUNTS)
IN_STACKS: tuple[Metric, ...] = tuple(each for each in COLUMNS if each.uses.in_stacks)
IN_HISTORY: tuple[Metric, ...] = tuple(each for each in METRICS.values() if each.uses.in_history)
BY_ROUND: Mapping[str, Callable[[Replicate], Floats]] = {
    each.title: each.round_samples for each in METRICS.values() if each.round_samples
}
"""Title -> reader of the round log ratios [rounds after warm-up] whose median is a seed's log cost ratio."""


def metric_of(name: str) -> Metric | None:
    """Look up a metric, a family's member included; None where no metric has that name."""
    if name in METRICS:
        return METRICS[name]
    family = next((each for each in FAMILIES if name.startswith(each.prefix)), None)
    return family.member(name.removeprefix(family.prefix)) if family else None


def metrics_in(replicates: Sequence[Replicate]) -> list[Metric]:
    """List the registry's metrics, with those members of the families that occur in the seeds."""
    present: list[Metric] = []
    for each in REGISTRY:
        if isinstance(each, Metric):
            present.append(each)
        else:
            names = {name for replicate in replicates for name in each.names(replicate)}
            present += map(each.member, sorted(names))
    return present


def values(seeds: Seeds) -> dict[str, Value]:
    """Read the value of every metric by its name; only the time to quality where all seeds failed."""
    if not seeds.replicates:
        diverged = Value("missed", reason="every seed diverged")
        return {"time_to_quality": diverged if seeds.diverged else unavailable("no seed finished")}
    return {each.name: _attempt(partial(each.value, seeds)) for each in metrics_in(seeds.replicates)}


def log_cost_ratios(replicate: Replicate, among: Iterable[Metric]) -> dict[str, float]:
    """Read a seed's log cost ratios by metric; metrics that the seed does not have are left out."""
    ratios = {}
    for each in among:
        try:
            ratios[each.name] = each.log_cost_ratio(replicate)
        except (ValueError, ArithmeticError):
            continue
    return ratios
