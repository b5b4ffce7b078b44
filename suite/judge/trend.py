"""Tells how a quality changes along the ladder of sizes: the equivalent budget per decade of compute.

Wen et al. (arXiv 2509.02046) see speedups of 1.4 at 0.1 B parameters become 1.1 at 1.2 B: what a technique is worth at
one size says little of the next, and the slope over sizes is the finding. A weighted line through the logarithms, whose
interval has the errors of its points alone: where the points do not lie on a line, it is too narrow, and with two
points nothing can show that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from suite.judge.rows import Row
from suite.judge.statistics import Interval

NORMAL = 1.96  # half-width of a 95 % interval, in standard errors
METHOD = "weighted line over sizes"


def trend(rows: Iterable[Row]) -> Interval | None:
    """Computes the change of ln(equivalent budget) per decade of the reference's compute, over the sizes of one stack
    on one baseline; None with fewer than two sizes of one recipe, version and reference. What has most sizes gives it,
    of equals the newest version."""
    points: dict[tuple[str, int, str], dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        log, compute = row.value("equivalent_budget").log, compute_of(row)
        if log is None or compute is None or not 0 < log.half_width < math.inf or row.conditions.model:
            continue
        at = row.conditions
        of_sizes = points.setdefault((at.recipe, at.baseline_version, row.reference), {})
        of_sizes.setdefault(at.size, (math.log10(compute), -log.estimate, log.half_width / NORMAL))
    _, most = max(points.items(), key=lambda one: (len(one[1]), one[0][1]), default=("", {}))
    x, y, se = np.array(list(most.values()), dtype=np.float64).reshape(-1, 3).T
    if len(most) < 2 or float(np.ptp(x)) == 0:
        return None
    weights = se**-2
    centred = x - (weights * x).sum() / weights.sum()
    spread = float((weights * centred**2).sum())
    slope, half = float((weights * centred * y).sum()) / spread, NORMAL / math.sqrt(spread)
    return Interval(slope, slope - half, slope + half, 0.95, METHOD, len(most))


def compute_of(row: Row) -> float | None:
    """Returns the FLOPs of the reference's training; None where they were not counted."""
    counters = row.known.counters[0]
    return float(counters.flops * row.conditions.steps) if counters else None


def in_words(slope: Interval | None) -> str:
    """Returns ``↗``, ``↘``, or why there is no arrow."""
    if slope is None:
        return "one size"
    return "↗" if slope.low > 0 else "↘" if slope.high < 0 else "cannot tell"
