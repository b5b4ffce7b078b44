"""The interaction of a stack: do techniques still help together?

A stack, its parts and one reference are trained in one comparison:

    interaction = log speedup(A+B) - log speedup(A) - log speedup(B)                           (paired by seed)

At 0 the speedups multiply. Above 0 the stack gains more than its parts multiply to; below 0 they overlap or stand in
each other's way. A cost that is no time (bytes, loss) has a saving, reference over contender, in place of the speedup.
A stack of three parts or more is compared with all of them. The interval is Student's t over seeds
(:func:`suite.judge.statistics.interaction`); an exact count has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.judge.metrics import IN_STACKS, Metric, Value, unavailable
from suite.judge.replicate import Replicate
from suite.judge.rows import Row, finite, interval_as_dict
from suite.judge.statistics import detectable_effect, interaction, median
from suite.record.job import parts_of
from suite.record.schema import Outcome

SAME = 1e-9  # in log units: rounding errors


@dataclass(frozen=True)
class Interaction:
    """A stack and its parts against one reference under equal conditions.

    ``seeds``: those in which all of them finished. ``together``: all in the same comparisons, so that the machine's
    drift cancels between them, too. ``values`` by metric: the whole's cost ratio over the product of its parts', as a
    cost: its ``speedup`` is the interaction as a factor, and minus its ``log`` the interaction itself.
    """

    whole: Row
    parts: tuple[Row, ...]
    seeds: tuple[int, ...]
    together: bool
    values: Mapping[str, Value]

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
            return "one seed: no interval"
        if not value.log.contains(0):
            return _direction(math.exp(-value.log.estimate))
        if value.log.half_width < SAME:
            return "they multiply in every seed"
        percent = 100 * math.expm1(detectable_effect(value.log))
        return f"none seen; one below {percent:.2g} % would probably not have been"


def _direction(gain: float) -> str:
    return "more together than they multiply to" if gain > 1 else "less together than they multiply to"


# in rows ------------------------------------------------------------------------------------------------------------


def interactions(rows: Iterable[Row]) -> list[Interaction]:
    """Find every stack whose parts have rows that are comparable with its own, in the order of the stacks' rows."""
    known = list(rows)
    places = {(_place(row), row.stack): row for row in known}
    complete = []
    for whole in known:
        parts = [places.get((_place(whole), part)) for part in parts_of(whole.stack)]
        present = [part for part in parts if part is not None and part.sources.items() <= whole.sources.items()]
        if parts and len(present) == len(parts):
            complete.append(interaction_of(whole, present))
    return complete


def _place(row: Row) -> tuple[str, ...]:
    """A key that comparable rows share; the code of their techniques is compared separately."""
    return *row.board, row.pairing, row.harness_sha256, row.baseline_sha256


def interaction_of(whole: Row, parts: Sequence[Row]) -> Interaction:
    """Compute the interaction of comparable rows."""
    by_seed = [{each.seed: each for each in row.replicates} for row in (whole, *parts)]
    seeds = tuple(sorted(set.intersection(*(set(each) for each in by_seed))))
    shared = [[replicates[seed] for seed in seeds] for replicates in by_seed]
    together = all(set(part.records) >= set(whole.records) for part in parts)
    values = {metric.name: _value(metric, (whole, *parts), shared) for metric in IN_STACKS}
    return Interaction(whole, tuple(parts), seeds, together, values)


def _value(metric: Metric, rows: Sequence[Row], shared: Sequence[Sequence[Replicate]]) -> Value:
    """The interaction by one metric.

    ``rows`` are the whole's and its parts'; ``shared`` are their replicates of the same seeds.
    """
    for row in rows:
        if row.failed:
            return unavailable(f"{row.stack} has no numbers: {_ended(row)}")
        value = row.metrics[metric.name]
        if not value.known:
            return Value(value.kind, reason=f"{row.stack}: {value.reason}")
    if not shared[0]:
        return unavailable("no seed in which the stack and all its parts finished")
    tried = {seed for row in rows for seed in (*row.seeds, *(each.seed for each in row.failures))}
    note = f"{len(shared[0])} of {len(tried)} seeds: where all finished" if len(shared[0]) < len(tried) else ""
    if metric.exact:
        return _exact(metric, shared, note)
    try:
        gains = [[-metric.log_cost_ratio(each) for each in replicates] for replicates in shared]
        log = interaction(*gains)
    except ValueError as error:
        return unavailable(str(error))
    return Value("measured", math.exp(-log.estimate), log.negated(), note=note)


def _ended(row: Row) -> str:
    return "; ".join(sorted({f"{each.status}: {each.reason}" for each in row.failures}))


def _exact(metric: Metric, shared: Sequence[Sequence[Replicate]], note: str) -> Value:
    """The interaction by a count: n parts multiply exactly where whole * reference^(n-1) is the parts' product."""

    def count(side: Outcome) -> float:
        number = metric.quantity(side) if metric.quantity else None
        assert number is not None  # the row's value is known
        return number

    ratios = []
    for whole, *parts in zip(*shared):
        above = count(whole.contender) * math.prod(count(part.reference) for part in parts)
        below = count(whole.reference) * math.prod(count(part.contender) for part in parts)
        ratios.append(above / below)
    if len(set(ratios)) > 1:
        note = "; ".join(filter(None, ("differs between seeds: median", note)))
    return Value("exact", median(ratios), note=note)


def as_dict(stack: Interaction) -> dict[str, Any]:
    """The interaction as JSON values, in log units, above 0 where the whole gains more; None for what is not finite."""
    return {
        "stack": stack.whole.stack,
        "parts": [part.stack for part in stack.parts],
        "seeds": list(stack.seeds),
        "one_comparison": stack.together,
        "stale": sorted({why for row in stack.rows for why in row.stale}),
        "interactions": {
            metric: _value_as_dict(value, stack.reading(metric)) for metric, value in stack.values.items()
        },
    }


def _value_as_dict(value: Value, reading: str) -> dict[str, Any]:
    interval = interval_as_dict(value.log.negated()) if value.log else None
    return {
        "kind": value.kind,
        "interaction": finite(-math.log(value.number)) if value.known else None,
        "low": interval and interval["low"],
        "high": interval and interval["high"],
        "reading": reading,
        "note": value.note,
    }
