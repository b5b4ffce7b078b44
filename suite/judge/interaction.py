"""Computes the interaction of a stack: do techniques still help together?

A stack and its parts are measured against one reference:

    interaction = log speedup(A+B) - log speedup(A) - log speedup(B)

At 0 the speedups multiply. Above 0 the stack gains more than its parts multiply to; below 0 they overlap or stand in
each other's way. A cost that is no time (bytes, loss) has a saving, reference over contender, in place of the speedup.
A stack of three parts or more is compared with all of them. What was learned is paired by seed, what was timed together
by set of processes (:func:`suite.judge.statistics.interaction`). Else the intervals of the rows are combined as
independent ones, which is too wide where the rows share a reference's noise. An exact count has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.judge.metrics import IN_STACKS, Metric, MetricValue, unavailable
from suite.judge.rows import Row, finite, interval_as_dict
from suite.judge.statistics import detectable_effect, difference_interval, interaction
from suite.record.job import Spelling

SAME = 1e-9  # in log units: rounding errors


@dataclass(frozen=True)
class Interaction:
    """Holds a stack and its parts against one reference under equal conditions.

    ``seeds``: those that all of them learned from. ``together``: all were timed in the same sets of processes, so that
    the machine's drift cancels between them, too. ``values`` by metric: the whole's cost ratio over the product of its
    parts', as a cost: its ``speedup`` is the interaction as a factor, and minus its ``log`` the interaction itself.
    """

    whole: Row
    parts: tuple[Row, ...]
    seeds: tuple[int, ...]
    together: bool
    values: Mapping[str, MetricValue]

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.parts, self.whole)

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)

    def reading(self, metric: str) -> str:
        """Say the interaction in words: its direction, why there is none, or what could not have been seen."""
        value = self.values[metric]
        if not value.known:
            return value.reason
        if value.log is None:
            gain = 1 / value.number
            return "they multiply exactly" if gain == 1 else f"{_direction(gain)}, by exactly {abs(gain - 1):.2%}"
        if not math.isfinite(value.log.half_width):
            return "one replicate: no interval"
        if not value.log.contains(0):
            return _direction(math.exp(-value.log.estimate))
        if value.log.half_width < SAME:
            return "they multiply in every replicate"
        least = detectable_effect(value.log)
        if least > math.log(2):
            return "too noisy to see even a twofold one"
        return f"none seen; one of {100 * math.expm1(least):.2g} % or more would have shown"


def _direction(gain: float) -> str:
    return "more together than they multiply to" if gain > 1 else "less together than they multiply to"


# in rows ------------------------------------------------------------------------------------------------------------


def interactions(rows: Iterable[Row]) -> list[Interaction]:
    """Find every stack whose parts have rows that are comparable with its own, in the order of the stacks' rows."""
    known = list(rows)
    places = {(row.board, row.stack): row for row in known}
    complete = []
    for whole in known:
        parts = [places.get((whole.board, part)) for part in Spelling(whole.stack).members]
        present = [part for part in parts if part is not None]
        if parts and len(present) == len(parts):
            complete.append(interaction_of(whole, present))
    return complete


def interaction_of(whole: Row, parts: Sequence[Row]) -> Interaction:
    """Compute the interaction of comparable rows."""
    rows = (whole, *parts)
    seeds = set.intersection(*(set(row.seeds) for row in rows))
    timings = [{timing.record for timing in row.known.timed} for row in rows]
    shared = set.intersection(*timings)
    together = bool(shared) and len(shared) >= min(
        2, *map(len, timings)
    )  # where one part failed once, the others count
    values = {metric.name: _value(metric, rows, together) for metric in IN_STACKS}
    return Interaction(whole, tuple(parts), tuple(sorted(seeds)), together, values)


def _value(metric: Metric, rows: Sequence[Row], together: bool) -> MetricValue:
    """Returns the interaction by one metric; ``rows`` are the whole's and its parts'."""
    if broken := next((row for row in rows if row.failed), None):
        return unavailable(f"{broken.stack} has no numbers: {_ended(broken)}")
    for row in rows:
        value = row.value(metric.name)
        if not value.known:
            return MetricValue("unavailable", reason=f"{row.stack}: {value.reason or value.note}")
    samples = [metric.samples(row.known) for row in rows]
    if metric.exact:
        whole, *parts = (sample[0] for sample in samples)
        return MetricValue("exact", math.exp(whole - sum(parts)))
    if metric.kind == "learned":
        return _paired(samples)
    if metric.kind == "timed" and together:
        records = [[timing.record for timing in row.known.timed] for row in rows]
        return _paired(
            [{record[at]: x for at, x in sample.items()} for record, sample in zip(records, samples, strict=True)]
        )
    logs = [log for row in rows if (log := row.value(metric.name).log)]
    log = logs[0]
    for part in logs[1:]:
        log = difference_interval(log, part)
    return MetricValue("measured", math.exp(log.estimate), log, note="" if together else "timed apart")


def _paired(samples: Sequence[Mapping[Any, float]]) -> MetricValue:
    """Returns the interaction of samples by replicate; those that all have are paired."""
    shared = sorted(set.intersection(*map(set, samples)))
    if not shared:
        return unavailable("no replicate in which the stack and all its parts finished")
    tried = set.union(*map(set, samples))
    note = f"{len(shared)} of {len(tried)} replicates: where all finished" if len(shared) < len(tried) else ""
    log = interaction(*([-sample[replicate] for replicate in shared] for sample in samples))
    return MetricValue("measured", math.exp(-log.estimate), log.negated(), note=note)


def _ended(row: Row) -> str:
    return (
        "; ".join(sorted({f"{failure.status}: {failure.reason}" for failure in row.failures})) or "nothing was measured"
    )


def as_dict(stack: Interaction) -> dict[str, Any]:
    """Returns the interaction as JSON values, in log units, above 0 where the whole gains more; None for what is not
    finite."""
    return {
        "stack": stack.whole.stack,
        "parts": [part.stack for part in stack.parts],
        "seeds": list(stack.seeds),
        "timed_together": stack.together,
        "unverified": sorted({what for row in stack.rows for what in row.unverified}),
        "interactions": {
            metric: _value_as_dict(value, stack.reading(metric)) for metric, value in stack.values.items()
        },
    }


def _value_as_dict(value: MetricValue, reading: str) -> dict[str, Any]:
    interval = interval_as_dict(value.log.negated()) if value.log else None
    return {
        "kind": value.kind,
        "interaction": finite(-math.log(value.number)) if value.known else None,
        "low": interval and interval["low"],
        "high": interval and interval["high"],
        "reading": reading,
        "note": value.note,
    }
