"""Has the registry of metrics: what is reported of a pair, how it is read from evidence, and where it is used.

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
from functools import lru_cache, partial
from operator import attrgetter
from typing import Literal

import numpy as np

from suite.judge.known import Facts, Known, LearnedPair, TimedPair
from suite.judge.power_model import joules, watts_of
from suite.judge.ruler import Ruler
from suite.judge.statistics import (
    Floats,
    Interval,
    Prior,
    TimeToQuality,
    difference_interval,
    median,
    moderated_interval,
    pooled_variance,
    time_to_quality,
    time_to_quality_interval,
)
from suite.record.schema import COUNTS, Count, Energy, Learned, Side

ValueKind = Literal["measured", "modelled", "exact", "bound", "missed", "unavailable"]
MetricKind = Literal["counted", "learned", "timed", "measured", "composed"]
"""``counted``: equal code gives equal numbers. ``learned``: what the model learned; equal code gives it again on one
machine. ``timed``: how long it took. ``measured``: read from the machine, where it has such a figure, and unavailable
elsewhere. ``composed``: of several of these."""

Direction = Literal["lower", "higher", "none"]
"""Which direction is better in the number that is shown. ``lower``: the cost ratio is shown. ``higher``: the speedup,
its inverse. ``none``: the metric describes, and neither is better."""

ARROWS: Mapping[Direction, str] = {"lower": "↓", "higher": "↑", "none": ""}

Samples = Mapping[int, float]
"""Replicate (a seed, or the number of a set of processes) -> ln of the cost ratio."""

Priors = Mapping[str, Prior]
"""Metric -> the variance of a replicate, shared by the rows of a baseline."""

Quantity = Callable[[Facts], float | None]
"""What one run cost or reached, without noise; None where it is not known."""


@dataclass(frozen=True)
class MetricValue:
    """Holds a cost ratio, contender over reference, and where it comes from.

    ``log`` is the interval of its logarithm where it was measured; exact counts have none. A ``bound`` is the least
    cost ratio that is possible, or with ``at_most`` the largest. A ``missed`` quality was reached in no seed.
    ``reference`` and ``contender`` are the medians of the two quantities themselves, in the unit of the metric. A
    ``control`` compares two sides that do the same: it shows what chance does, and is neither better nor worse.
    """

    kind: ValueKind
    number: float = math.nan
    log: Interval | None = None
    at_most: bool = False
    reason: str = ""  # why there is no number
    note: str = ""  # what the number does not show
    reference: float | None = None
    contender: float | None = None
    control: bool = False

    @property
    def known(self) -> bool:
        return self.kind in ("measured", "modelled", "exact")

    @property
    def interval(self) -> Interval | None:
        """Returns the interval of the cost ratio."""
        return self.log.ratio() if self.log else None

    @property
    def speedup(self) -> Interval | None:
        """Returns the interval of the inverse ratio."""
        return self.log.speedup() if self.log else None


@lru_cache(maxsize=1 << 10)  # a leaderboard says a few reasons ten thousands of times
def unavailable(reason: str) -> MetricValue:
    return MetricValue("unavailable", reason=reason)


@dataclass(frozen=True)
class Uses:
    """Says where a metric is used beyond tables of all metrics.

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
    """Defines a metric: what it is, how it is read, where it is used.

    Attributes:
        unit: of the two quantities behind the ratio.
        samples: reads the log cost ratio of every replicate. Raises ValueError where there is none.
        value: reads the value of a pair, with the variance that its baseline's rows share.
        quantity: reads the quantity of one run; None where only a pair has the metric, or no run repeats it.
        round_samples: reads the log ratios of the rounds of one set of processes; None where rounds have none.
        quality: whether it judges how well the model learned.
    """

    name: str
    title: str
    unit: str
    kind: MetricKind
    samples: Callable[[Known], Samples]
    value: Callable[[Known, Priors], MetricValue]
    quantity: Quantity | None = None
    round_samples: Callable[[TimedPair], Floats] | None = None
    direction: Direction = "lower"
    quality: bool = False
    uses: Uses = Uses()

    @property
    def exact(self) -> bool:
        """Tells whether it is a count, without noise."""
        return self.kind == "counted"

    @property
    def repeatable(self) -> bool:
        """Tells whether one run of each side gives the number that every other run would give."""
        return self.kind in ("counted", "learned")

    @property
    def heading(self) -> str:
        return self.uses.heading or self.title

    @property
    def arrow(self) -> str:
        return ARROWS[self.direction]


@dataclass(frozen=True)
class MetricFamily:
    """Defines metrics whose names are known only from the evidence: ``prefix`` and a name that occurs there."""

    prefix: str
    names: Callable[[Known], Iterable[str]]
    member: Callable[[str], Metric]


# readers ------------------------------------------------------------------------------------------------------------


def _attempt(read: Callable[[], MetricValue]) -> MetricValue:
    """Read a value; it is unavailable where the estimators raise ValueError, which has the reason."""
    try:
        return read()
    except (ValueError, ArithmeticError) as error:
        return unavailable(str(error))


def _value_of(log: Interval, reference: Sequence[float], contender: Sequence[float], note: str = "") -> MetricValue:
    return MetricValue(
        "measured", math.exp(log.estimate), log, note=note, reference=median(reference), contender=median(contender)
    )


def _log(theirs: float | None, ours: float | None, reason: str) -> float:
    if theirs is None or ours is None:
        raise ValueError(reason)
    if not (0 < theirs < math.inf and 0 < ours < math.inf):
        raise ValueError("a log ratio needs two positive and finite numbers")
    return math.log(ours / theirs)


def _moderated(name: str, samples: Samples, priors: Priors) -> Interval:
    return moderated_interval(list(samples.values()), priors.get(name))


def _of_sets(name: str, samples: Samples, priors: Priors) -> Interval:
    """Returns the interval over sets of processes. One set has none: how far its processes' layout favours one side,
    nothing says, and the other rows' noise is of other layouts."""
    return _moderated(name, samples, priors if len(samples) > 1 else {})


PROBE_RATIO = "probe_ratio."  # and a probe's name: of both sides
NOT_TIMED = "not timed yet: measure it with leantrain run"
NOT_LEARNED = "nothing was learned yet: measure it with leantrain run"
NO_RULER = "the reference's scaling curve was not learned here: leantrain run --ruler 3 learns it"


def _timed(
    name: str, title: str, rounds: Callable[[TimedPair], Floats], log: Callable[[TimedPair], float], uses: Uses = Uses()
) -> Metric:
    """Define a time that every round of a set of processes measures, in seconds per step of the reference."""

    def samples(known: Known) -> Samples:
        if not known.timed:
            raise ValueError(NOT_TIMED)
        return {timing.replicate: log(timing) for timing in known.timed}

    def value(known: Known, priors: Priors) -> MetricValue:
        ratios = samples(known)
        reference_s = [timing.reference_step_s for timing in known.timed]
        contender_s = [s * math.exp(ratio) for s, ratio in zip(reference_s, ratios.values(), strict=True)]
        return _value_of(_of_sets(name, ratios, priors), reference_s, contender_s)

    return Metric(name, title, "s", "timed", samples, value, round_samples=rounds, uses=uses)


def _of_process(
    name: str,
    title: str,
    unit: str,
    kind: MetricKind,
    quantity: Callable[[Side], float | None],
    reason: str,
    uses: Uses = Uses(),
) -> Metric:
    """Define what every timed process has once; it is unavailable for ``reason`` where one has not."""

    def samples(known: Known) -> Samples:
        if not known.timed:
            raise ValueError(NOT_TIMED)
        return {
            timing.replicate: _log(quantity(timing.reference), quantity(timing.contender), reason)
            for timing in known.timed
        }

    def value(known: Known, priors: Priors) -> MetricValue:
        log = _of_sets(name, samples(known), priors)
        sides = zip(*(timing.sides for timing in known.timed), strict=True)
        theirs, ours = ([quantity(side) or math.nan for side in column] for column in sides)
        return _value_of(log, theirs, ours)

    return Metric(name, title, unit, kind, samples, value, uses=uses)


def _learned(
    name: str,
    title: str,
    quantity: Callable[[Facts], float | None],
    *,
    direction: Direction = "lower",
    uses: Uses = Uses(),
) -> Metric:
    """Define what every learned run ends with."""

    def samples(known: Known) -> Samples:
        if not known.learned:
            raise ValueError(NOT_LEARNED)
        return {
            run.seed: _log(quantity(theirs), quantity(ours), "not recorded")
            for run, (theirs, ours) in zip(known.learned, known.facts(), strict=True)
        }

    def value(known: Known, priors: Priors) -> MetricValue:
        log = _moderated(name, samples(known), priors)
        theirs, ours = ([quantity(side) or math.nan for side in column] for column in zip(*known.facts(), strict=True))
        return _value_of(log, theirs, ours)

    return Metric(name, title, "", "learned", samples, value, quantity, direction=direction, quality=True, uses=uses)


def _counted(
    name: str, title: str, unit: str, quantity: Quantity, *, direction: Direction = "lower", uses: Uses = Uses()
) -> Metric:
    """Define an exact count of one step or of a whole run."""

    def numbers(known: Known) -> tuple[float, float]:
        sides = [
            quantity(Facts(counted.stack, _whole_steps(known, index), known.counters[index])) if counted else None
            for index, counted in enumerate(known.counted)
        ]
        if sides[0] is None or sides[1] is None:
            raise ValueError("not counted")
        return sides[0], sides[1]

    def samples(known: Known) -> Samples:
        return {0: _log(*numbers(known), "not counted")}

    def value(known: Known, priors: Priors) -> MetricValue:
        theirs, ours = numbers(known)
        if theirs == 0:
            return replace(unavailable("the reference has none"), reference=theirs, contender=ours)
        steps = [point.counters for side in known.counted if side for point in side.points]
        ranks = max(step.ranks for step in steps)
        notes = (
            "counts what the eager operators do, though timed compiled" if any(step.compiled for step in steps) else "",
            f"of one of {ranks} ranks" if ranks > 1 else "",
        )
        return MetricValue(
            "exact", ours / theirs, note="; ".join(filter(None, notes)), reference=theirs, contender=ours
        )

    return Metric(name, title, unit, "counted", samples, value, quantity, direction=direction, uses=uses)


def _whole_steps(known: Known, index: int) -> int | None:
    """Returns the steps of a side's whole run: counts are taken in a short one."""
    of_runs = [pair.sides[index].steps for pair in known.learned] + [pair.sides[index].steps for pair in known.timed]
    counted = known.counted[index]
    if of_runs or counted is None or counted.steps is None:
        return of_runs[0] if of_runs else None
    return counted.steps


def _with_uncounted(metric: Metric) -> Metric:
    """Let the value of FLOPs say where operators were left out."""

    def value(known: Known, priors: Priors) -> MetricValue:
        of_steps = [point.counters.uncounted_operators for side in known.counted if side for point in side.points]
        of_runs = [run.uncounted_operators for pair in known.learned for run in pair.sides]
        if names := sorted(set().union(*of_steps, *of_runs)):
            known_part = metric.value(known, priors)
            notes = (known_part.note, f"lower bounds, without FLOPs of {', '.join(names)}")
            return replace(known_part, note="; ".join(filter(None, notes)))
        return metric.value(known, priors)

    return replace(metric, value=value)


COUNTER_USES: Mapping[str, Uses] = {
    "peak_tensor_bytes": Uses(40, "peak tensors", headline=True, in_stacks=True, in_history=True),
    "flops": Uses(in_history=True),
}
"""The counters that are used beyond tables of all metrics."""


def _counter(name: str, count: Count) -> Metric:
    metric = _counted(
        name,
        count.title,
        count.unit,
        lambda facts: getattr(facts.counters, name) if facts.counters else None,
        direction="lower" if count.cost else "none",
        uses=COUNTER_USES.get(name, Uses()),
    )
    return _with_uncounted(metric) if name == "flops" else metric


def _peak(kind: str) -> Metric:
    return _counted(
        f"peak.{kind}",
        f"{kind.replace('_', ' ')} at the peak",
        "B",
        lambda facts: facts.counters.peak_by_kind.get(kind, 0) if facts.counters else None,
    )


def _steps_flops(facts: Facts) -> float | None:
    return facts.counters.flops * facts.steps if facts.counters and facts.steps else None


def _training_flops() -> Metric:
    """Define the FLOPs of the whole training: of the learned runs, set-up included and over all ranks, where they were
    tallied, else as many as single steps say."""
    of_steps = _counted("training_flops", "FLOPs of the training", "FLOP", _steps_flops, uses=Uses(100, "FLOPs"))

    def samples(known: Known) -> Samples:
        whole = _tallied(known)
        return {0: _log(*whole, "not counted")} if whole else of_steps.samples(known)

    def value(known: Known, priors: Priors) -> MetricValue:
        if whole := _tallied(known):
            theirs, ours = whole
            changing = any(side and len(side.points) > 1 for side in known.counted)
            note = "its cost changes on the way, and a sample of its steps was counted" if changing else ""
            return MetricValue("exact", ours / theirs, note=note, reference=theirs, contender=ours)
        return of_steps.value(known, priors)

    return _with_uncounted(replace(of_steps, samples=samples, value=value))


def _tallied(known: Known) -> tuple[float, float] | None:
    """Returns the FLOPs of both sides' whole runs, the mean over seeds; None where they are not known of one. A run of
    the reference that stands for the contender's, whose every bit it has, says nothing of what that took."""
    sides = []
    for index, counted in enumerate(known.counted):
        runs = [pair.sides[index] for pair in known.learned]
        own = [run.flops for run in runs if run.flops and (counted is None or run.stack == counted.stack)]
        sides.append(sum(own) / len(own) if own else None)
    theirs, ours = sides
    return None if theirs is None or ours is None else (theirs, ours)


def _final(name: str) -> Metric:
    """Define a further test metric of the baseline; only its name says which direction is better."""
    return _learned(
        f"final.{name}", name, lambda facts: facts.final.metrics.get(name) if facts.final else None, direction="none"
    )


def _probe_ratio(name: str) -> Metric:
    """Define a probe over the reference's, which a run of the reference's trajectory measured."""
    return _learned(
        f"{PROBE_RATIO}{name}", f"{name} over the reference's", lambda facts: facts.probes.get(name), direction="none"
    )


def _final_loss(facts: Facts) -> float | None:
    return facts.final.loss if facts.final else None


RELATIVE_FLOPS = ".relative_flops"
"""How the probe ends by which a technique counts what its masked matrices would cost a kernel that computes nothing for
zeros, over dense ones."""


def _without_zeros(facts: Facts) -> float | None:
    shares = [value for name, value in facts.probes.items() if name.endswith(RELATIVE_FLOPS)]
    return math.prod(shares) if shares else None


def _without_zeros_samples(known: Known) -> Samples:
    if not known.learned:
        raise ValueError(NOT_LEARNED)
    contenders = (ours for _, ours in known.facts())
    shares = {run.seed: _without_zeros(ours) for run, ours in zip(known.learned, contenders, strict=True)}
    return {seed: _log(1.0, share, "it masks no weights, or has not learned") for seed, share in shares.items()}


def _flops_without_zeros(known: Known, priors: Priors) -> MetricValue:
    share = math.exp(float(np.mean(list(_without_zeros_samples(known).values()))))
    note = "of the masked matrices, by a kernel that computes nothing for zeros; here they are computed densely"
    return MetricValue("modelled", share, note=note, reference=1.0, contender=share)


# composed ------------------------------------------------------------------------------------------------------------


def _equivalent_samples(known: Known) -> Samples:
    """Returns the samples of -ln(equivalent budget over the reference's own): a cost."""
    ruler = _ruler(known)
    theirs, ours = known.losses()
    return {
        run.seed: -float(ratio) for run, ratio in zip(known.learned, ruler.log_budget_ratios(theirs, ours), strict=True)
    }


def _ruler(known: Known) -> Ruler:
    if known.ruler is None:
        raise ValueError(NO_RULER)
    return known.ruler


def _equivalent_budget(known: Known, priors: Priors) -> MetricValue:
    ruler, (theirs, ours) = _ruler(known), known.losses()
    if side := ruler.beyond(ours):
        end = ruler.ends[0 if side < 0 else 1]
        words = f"{'less' if side < 0 else 'more'} than {end:g} of the reference's budget ends there"
        return MetricValue("bound", 1 / end, at_most=side > 0, note=words)
    log = _moderated("equivalent_budget", _equivalent_samples(known), priors)
    wider = difference_interval(log, _exactly(0.0, log), ruler.uncertainty(theirs, ours), ruler.degrees_of_freedom)
    own = float(known.learned[0].reference.steps or 0)
    unknown = "" if ruler.degrees_of_freedom else "its curve has one seed, so the interval lacks the curve's own error"
    note = "; ".join(filter(None, (f"curve learned on {ruler.machine}" if ruler.machine else "", unknown)))
    return replace(_value_of(wider, [own], [own * math.exp(-wider.estimate)]), note=note)


def _exactly(x: float, like: Interval) -> Interval:
    return Interval(x, x, x, like.level, like.method, like.n)


def _time_to_quality(known: Known, priors: Priors) -> MetricValue:
    """Computes the contender's whole cost over the equivalent budget: ln ratio = ln cost - ln budget."""
    budget = _equivalent_budget(known, priors)
    cost = _of_sets("whole_time", METRICS["whole_time"].samples(known), priors)
    if budget.kind == "bound":
        end = cost.high if budget.at_most else cost.low  # what the times leave open belongs to a bound
        if not math.isfinite(end):
            raise ValueError(f"{budget.note}, and its time has no interval: time it again")
        return MetricValue("bound", budget.number * math.exp(end), at_most=budget.at_most, note=budget.note)
    assert budget.log is not None
    log = difference_interval(cost, budget.log.negated())
    own = float(known.learned[0].reference.steps or 0)
    return _value_of(log, [own], [own * math.exp(log.estimate)], budget.note)


def _time_to_quality_samples(known: Known) -> Samples:
    """Returns the samples by seed, at the mean cost of all timings."""
    costs = METRICS["whole_time"].samples(known)
    cost = float(np.mean(list(costs.values())))
    return {seed: cost + sample for seed, sample in _equivalent_samples(known).items()}


def _loss_at_equal_time_samples(known: Known) -> Samples:
    """Returns samples in which the reference is read off its curve at the budget that costs what the contender cost."""
    ruler, (theirs, ours) = _ruler(known), known.losses()
    cost = float(np.mean(list(METRICS["whole_time"].samples(known).values())))
    low, high = ruler.ends
    if not math.log(low) <= cost <= math.log(high):
        raise ValueError(f"the contender cost {math.exp(cost):.2g} of the reference's budget: beyond its curve")
    shift = ruler.log_loss(cost) - ruler.log_loss(0.0)
    return {run.seed: math.log(b / a) - shift for run, a, b in zip(known.learned, theirs, ours, strict=True)}


def _loss_at_equal_time(known: Known, priors: Priors) -> MetricValue:
    samples = _loss_at_equal_time_samples(known)
    _, ours = known.losses()
    log = _moderated("loss", samples, priors)
    reached = [our / math.exp(sample) for our, sample in zip(ours, samples.values(), strict=True)]
    return _value_of(log, reached, ours, "the reference read off its scaling curve")


def _crossings(known: Known) -> Samples:
    if not known.timed:
        raise ValueError(NOT_TIMED)
    return {run.seed: _crossing(known, run).log_cost_ratio for run in known.learned}


def _crossing(known: Known, pair: LearnedPair) -> TimeToQuality:
    reference, contender = (_curve(side) for side in pair.sides)
    steps, own = float(reference[-1, 0]), contender[:, 0] / contender[-1, 0]
    costs = np.mean([timing.cost_at(own) for timing in known.timed], axis=0)
    setup = float(costs[0])
    return time_to_quality(reference, contender, (costs - setup) * steps, setup * steps)


def _curve(learned: Learned) -> Floats:
    if not learned.curve:
        raise ValueError("no validation curve was recorded")
    return np.array([(point.step, point.loss) for point in learned.curve], dtype=np.float64)


def _first_crossing(known: Known, priors: Priors) -> MetricValue:
    if not known.timed:
        raise ValueError(NOT_TIMED)
    if not known.learned:
        raise ValueError(NOT_LEARNED)
    results = [_crossing(known, run) for run in known.learned]
    interval = time_to_quality_interval(results)
    if interval is None:
        gap = float(np.mean([result.log_quality_gap for result in results]))
        return MetricValue("missed", reason=f"ended {math.expm1(gap):.1%} worse")
    return _value_of(
        interval, [result.reference_cost for result in results], [result.contender_cost for result in results]
    )


# of processes --------------------------------------------------------------------------------------------------------


def _processor_s(side: Side) -> float | None:
    """Returns the processor seconds of the whole training, from those of the timed steps."""
    timed = sum(2 * len(window.block_s) * window.block_steps for window in side.windows)
    return side.cpu_s / timed * side.steps if side.cpu_s and side.steps and timed else None


def _joules(side: Side) -> float | None:
    """Returns the energy of the whole training."""
    return None if side.energy.joules_per_step is None else side.energy.joules_per_step * (side.steps or 0)


def _energy(known: Known, priors: Priors) -> MetricValue:
    for timing in known.timed:
        for side in reversed(timing.sides):  # the contender's own reason first
            if side.energy.joules_per_step is None:
                return unavailable(side.energy.reason or "not measured")
    note = "; ".join(sorted({_scope(timing.contender.energy) for timing in known.timed}))
    return replace(_JOULES.value(known, priors), note=note)


def _scope(energy: Energy) -> str:
    bound = f", error at most {energy.relative_error_bound:.1%}" if energy.relative_error_bound is not None else ""
    return f"{energy.method or 'counter'}: {energy.scope or 'scope not stated'}{bound}"


def _modelled_joules(pair: TimedPair) -> tuple[float, float]:
    """Returns the energy of the reference's and of the contender's training, by the power model."""
    watts = watts_of(pair.processor)
    assert pair.reference.steps
    reference_s = pair.reference_step_s * pair.reference.steps
    energies_j = []
    for side, wall_s in zip(pair.sides, (reference_s, reference_s * math.exp(pair.training_log_ratio)), strict=True):
        processor_s = _processor_s(side)
        if processor_s is None:
            raise ValueError("processor seconds were not recorded")
        energies_j.append(joules(watts, wall_s, processor_s, pair.threads * int(side.recipe.get("world_size", 1))))
    return energies_j[0], energies_j[1]


def _modelled_samples(known: Known) -> Samples:
    if not known.timed:
        raise ValueError(NOT_TIMED)
    return {timing.replicate: _log(*_modelled_joules(timing), "not recorded") for timing in known.timed}


def _modelled_energy(known: Known, priors: Priors) -> MetricValue:
    log = _of_sets("modelled_energy", _modelled_samples(known), priors)
    theirs, ours = zip(*map(_modelled_joules, known.timed), strict=True)
    note = f"power model of {watts_of(known.timed[0].processor).architecture}"
    return replace(_value_of(log, theirs, ours, note), kind="modelled")


def _added_bytes(side: Side) -> int | None:
    """Returns the bytes that set-up and training add to a process that has libraries and data."""
    start, peak = side.memory.process_start_bytes, side.memory.process_peak_bytes
    return peak - start if start is not None and peak is not None else None


_JOULES = _of_process("energy", "energy", "J", "measured", _joules, "not measured", Uses(70))


def _last_window(pair: TimedPair) -> Floats:
    """Raises ValueError where the start alone was timed: the end may cost something else."""
    if len(pair.window_log_ratios) == 1:
        raise ValueError("the end of the run was not timed apart from its start: measure it with leantrain run")
    return pair.window_log_ratios[-1]


# the registry -------------------------------------------------------------------------------------------------------

REGISTRY: tuple[Metric | MetricFamily, ...] = (
    Metric(
        "time_to_quality",
        "time to the same quality",
        "reference steps",
        "composed",
        _time_to_quality_samples,
        _time_to_quality,
        direction="higher",
        quality=True,
        uses=Uses(10, headline=True, in_stacks=True),
    ),
    _timed(
        "step_time",
        "step time",
        attrgetter("step_log_ratios"),
        lambda pair: median(pair.step_log_ratios),
        Uses(20, headline=True, in_stacks=True, in_history=True),
    ),
    replace(  # judged by claims alone; its rounds are among those of step_time
        _timed("step_time_at_end", "step time at the end", _last_window, lambda pair: median(_last_window(pair))),
        round_samples=None,
    ),
    _timed(
        "training_time",
        "training time",
        attrgetter("training_log_samples"),
        attrgetter("training_log_ratio"),
        Uses(30, in_stacks=True, in_history=True),
    ),
    replace(  # a set-up happens once, in no round
        _timed("whole_time", "time with set-up", attrgetter("training_log_samples"), attrgetter("log_cost")),
        round_samples=None,
    ),
    Metric(
        "equivalent_budget",
        "equivalent budget",
        "reference steps",
        "learned",
        _equivalent_samples,
        _equivalent_budget,
        direction="higher",
        quality=True,
        uses=Uses(15),
    ),
    _learned("loss", "final loss", _final_loss, uses=Uses(80, headline=True, in_stacks=True, in_history=True)),
    Metric(
        "loss_at_equal_time",
        "loss, equal time",
        "",
        "composed",
        _loss_at_equal_time_samples,
        _loss_at_equal_time,
        quality=True,
        uses=Uses(90),
    ),
    Metric(
        "first_crossing",
        "first crossing",
        "reference steps",
        "composed",
        _crossings,
        _first_crossing,
        direction="higher",
        quality=True,
    ),
    replace(_JOULES, value=_energy),
    Metric("modelled_energy", "energy, modelled", "J", "timed", _modelled_samples, _modelled_energy, uses=Uses(75)),
    _of_process("processor_time", "processor time", "s", "timed", _processor_s, "not recorded"),
    _of_process(
        "process_peak_bytes",
        "process peak",
        "B",
        "measured",
        attrgetter("memory.process_peak_bytes"),
        "not readable on this machine",
        Uses(50),
    ),
    _of_process(
        "process_added_bytes",
        "process peak over its start",
        "B",
        "measured",
        _added_bytes,
        "not recorded, or not readable on this machine",
    ),
    _of_process(
        "cuda_allocated_peak_bytes",
        "CUDA peak",
        "B",
        "measured",
        attrgetter("memory.cuda_allocated_peak_bytes"),
        "no CUDA device",
        Uses(60),
    ),
    _of_process(
        "cuda_reserved_peak_bytes",
        "CUDA peak, reserved",
        "B",
        "measured",
        attrgetter("memory.cuda_reserved_peak_bytes"),
        "no CUDA device",
    ),
    *(_counter(name, count) for name, count in COUNTS.items()),
    MetricFamily(
        "peak.",
        lambda known: {
            kind for side in known.counted if side for point in side.points for kind in point.counters.peak_by_kind
        },
        _peak,
    ),
    _training_flops(),
    Metric(
        "flops_without_zeros",
        "FLOPs without zeros",
        "",
        "learned",
        _without_zeros_samples,
        _flops_without_zeros,
        _without_zeros,
        uses=Uses(105),
    ),
    MetricFamily(
        "final.",
        lambda known: {name for run in known.learned if run.contender.final for name in run.contender.final.metrics},
        _final,
    ),
    MetricFamily(
        PROBE_RATIO,
        lambda known: {
            name for run in known.learned for name in run.reference_probes.keys() & run.contender.probes.keys()
        },
        _probe_ratio,
    ),
)
"""In the order of tables of all metrics.

``time_to_quality``: the whole cost of reaching what the reference reaches in the same time, set-up included.
``step_time`` is of an own step, ``step_time_at_end`` of one in the last part of the run that was timed (of a model
that has grown by then), ``training_time`` per reference step of progress, ``equivalent_budget`` the steps that
the reference would have needed to end at the contender's loss, ``loss`` the final test loss at each one's own full
schedule, ``flops_without_zeros`` what masked matrices would cost where zeros cost nothing, ``first_crossing`` the cost
of first reaching the worse of the final validation losses, ``energy`` of the whole training.
"""

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in REGISTRY if isinstance(metric, Metric)}
FAMILIES: tuple[MetricFamily, ...] = tuple(metric for metric in REGISTRY if isinstance(metric, MetricFamily))

COLUMNS: tuple[Metric, ...] = tuple(
    sorted((metric for metric in METRICS.values() if metric.uses.column), key=lambda metric: metric.uses.column)
)
"""The board's columns from left to right."""

HEADLINES: tuple[Metric, ...] = tuple(
    sorted((column for column in COLUMNS if column.uses.headline), key=lambda column: column.exact)
)
"""The numbers of a technique's summary: those with noise, then those that are counted."""

COUNTERS: tuple[Metric, ...] = tuple(METRICS[name] for name in COUNTS)
IN_STACKS: tuple[Metric, ...] = tuple(column for column in COLUMNS if column.uses.in_stacks)
IN_HISTORY: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.uses.in_history)
BY_ROUND: Mapping[str, Callable[[TimedPair], Floats]] = {
    metric.title: metric.round_samples for metric in METRICS.values() if metric.round_samples
}
"""Title -> reader of the round log ratios of a set of processes."""


def metric_of(name: str) -> Metric | None:
    """Look up a metric, a family's member included; None where no metric has that name."""
    if name in METRICS:
        return METRICS[name]
    family = next((family for family in FAMILIES if name.startswith(family.prefix)), None)
    return family.member(name.removeprefix(family.prefix)) if family else None


def metrics_in(known: Known) -> list[Metric]:
    """List the registry's metrics, with those members of the families that occur in the evidence."""
    present: list[Metric] = []
    for metric in REGISTRY:
        present += [metric] if isinstance(metric, Metric) else map(metric.member, sorted(metric.names(known)))
    return present


def values(known: Known, priors: Priors) -> dict[str, MetricValue]:
    """Read the value of every metric by its name."""
    return {metric.name: _attempt(partial(metric.value, known, priors)) for metric in metrics_in(known)}


def samples(known: Known, among: Iterable[Metric]) -> dict[str, Samples]:
    """Read the log cost ratios of all replicates by metric; metrics that the pair does not have are left out."""
    read = {}
    for metric in among:
        try:
            read[metric.name] = metric.samples(known)
        except (ValueError, ArithmeticError):
            continue
    return read


def priors(pairs: Sequence[Known]) -> dict[str, Prior]:
    """Returns the variance of a replicate by metric, shared by comparable pairs."""
    noisy = [metric for metric in METRICS.values() if metric.kind in ("learned", "timed", "measured")]
    read = [samples(known, noisy) for known in pairs]
    shared = {
        metric.name: pooled_variance([list(one[metric.name].values()) for one in read if metric.name in one])
        for metric in noisy
    }
    return {name: prior for name, prior in shared.items() if prior}
