"""Fair tuning: the learning rate of both sides from one grid, at one cost, chosen on validation data.

The grid multiplies each side's own learning rate. One seed is run at every rate, and the rate of the least final
validation loss is taken for all seeds; what is reported are test data. A comparison at fixed rates is one of how well
the rates were chosen (Choi et al. 2019, arXiv 1910.05446).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.record.schema import Learned

RATES = (0.3, 1.0, 3.0)
SEED = 0


def best_rate(runs: Mapping[float, Learned]) -> float | None:
    """The rate of the least validation loss, of the runs of one seed by rate; None while one of RATES is missing."""
    if any(rate not in runs for rate in RATES):
        return None
    return min(RATES, key=lambda rate: validation_loss(runs[rate]))


def validation_loss(run: Learned) -> float:
    """At the end; infinite where the run did not finish."""
    return run.curve[-1].loss if run.status == "ok" and run.curve else math.inf


def in_words(reference: float, contender: float) -> str:
    """The choice and its cost, for a row's notes."""
    grid = ", ".join(f"{rate:g}" for rate in RATES)
    edge = contender in (RATES[0], RATES[-1])
    return (
        f"learning rate × {contender:g}, the reference's × {reference:g}: each the best of {grid} on validation data, "
        f"{len(RATES)} runs a side{'; the best may lie beyond the grid' if edge else ''}"
    )
