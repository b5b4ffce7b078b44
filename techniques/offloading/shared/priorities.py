"""Tells which values leave first: by how long, and how much memory, they hold unused (Zhang et al., 2019).

    DOA    how long a value is not used
    AOA    DOA x its bytes
    WDOA   the integral of the memory load over its absence
    SWDOA  WDOA, of the load without the values chosen so far

The load is that of the plain pass, from its own trace. For autoswap, and for what joins offloading and recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, Value, plain
from suite.chain.simulate import Prediction, predicted
from techniques.offloading.shared.offloaded import candidates, fastest_way, least_peak, linked, nbytes, plain_fits

Score = Literal["doa", "aoa", "wdoa", "swdoa"]
SCORES: tuple[Score, ...] = get_args(Score)


@dataclass(frozen=True)
class Trace:
    """Holds a plain pass: moments in seconds, the bytes alive from each to the next, and each value's absence."""

    times: np.ndarray
    load: np.ndarray
    absences: dict[Value, tuple[int, int]]

    @classmethod
    def of(cls, chain: Chain) -> Trace:
        moments = [moment for moment in predicted(plain(chain.depth), chain).moments if moment.op.kind != "drop"]
        first = {moment.op: n for n, moment in enumerate(moments)}
        position = {(op.kind, op.block): n for op, n in first.items()}
        absences = {
            value: (position["save", value.block] + 1, position["back", value.block]) for value in candidates(chain)
        }
        times = np.array([*(moment.start_s for moment in moments), moments[-1].end_s])
        return cls(times, np.array([float(moment.peak_bytes) for moment in moments]), absences)

    def absence_s(self, value: Value) -> float:
        start, end = self.absences[value]
        return float(self.times[end] - self.times[start])

    def weighted(self, value: Value, load: np.ndarray) -> float:
        """Computes the integral of ``load`` over the value's absence."""
        start, end = self.absences[value]
        return float(np.sum(load[start:end] * np.diff(self.times)[start:end]))


def ranked(chain: Chain, score: Score) -> list[Value]:
    """Returns all values, those that should leave first in front."""
    trace = Trace.of(chain)
    if score == "swdoa":
        return _submodular(chain, trace)
    keys = {
        "doa": trace.absence_s,
        "aoa": lambda value: trace.absence_s(value) * nbytes(chain, value),
        "wdoa": lambda value: trace.weighted(value, trace.load),
    }
    return sorted(candidates(chain), key=keys[score], reverse=True)


def _submodular(chain: Chain, trace: Trace) -> list[Value]:
    values = candidates(chain)
    starts, ends = np.array([trace.absences[value] for value in values], dtype=int).reshape(-1, 2).T
    load, order, durations = trace.load.copy(), list[Value](), np.diff(trace.times)
    left = np.ones(len(values), dtype=bool)
    for _ in values:
        integral = np.concatenate([[0.0], np.cumsum(load * durations)])
        best = int(np.argmax(np.where(left, integral[ends] - integral[starts], -np.inf)))
        left[best] = False
        order.append(values[best])
        load[starts[best] : ends[best]] -= nbytes(chain, values[best])
    return order


def first_that_fit(chain: Chain, order: list[Value], budget_bytes: int, link: Link) -> int:
    """Counts how many values from the front must leave for the peak to fit, with every transfer waited for; more than
    there are where all are too few."""
    low, high = 1, len(order) + 1
    while low < high:
        middle = (low + high) // 2
        if least_peak(chain, order[:middle], link) <= budget_bytes:
            high = middle
        else:
            low = middle + 1
    return low


def by_priority(chain: Chain, budget_bytes: int, link: Link | None, scores: tuple[Score, ...] = SCORES) -> Schedule:
    """Finds the fastest plan of the scores', each with the fewest values that fit. Raises Infeasible."""
    if plain_fits(chain, budget_bytes):
        return plain(chain.depth)
    known, best = linked(link), None
    for score in scores:
        order = ranked(chain, score)
        count = first_that_fit(chain, order, budget_bytes, known)
        way = fastest_way(chain, order[:count], budget_bytes, known) if count <= len(order) else None
        best = _faster(best, way)
    if best is None:
        raise Infeasible("any priority", budget_bytes, least_peak(chain, candidates(chain), known))
    return best[0]


def _faster(
    best: tuple[Schedule, Prediction] | None, way: tuple[Schedule, Prediction] | None
) -> tuple[Schedule, Prediction] | None:
    return way if best is None or (way and way[1].time_s < best[1].time_s) else best
