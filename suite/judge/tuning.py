"""Implements fair tuning: the learning rate of each side, chosen on validation data by one search.

Rates are multiples of a side's own. The search begins with START, goes on beyond the end where the best lies until it
is bracketed, halves the steps around it, and repeats what is left, the best and its two neighbours, with a second seed;
the least mean validation loss is taken for all seeds, and what is reported are test data. What reaches an end of RATES
has its tuning *open*. A comparison at fixed rates is one of how well the rates were chosen (Choi et al. 2019,
arXiv 1910.05446); one on a grid whose end is the best is no better (Wen et al. 2025, arXiv 2509.02046).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.record.schema import Learned

RATES = (0.01, 0.017, 0.03, 0.055, 0.1, 0.17, 0.3, 0.55, 1.0, 1.7, 3.0, 5.5, 10.0, 17.0, 30.0, 55.0, 100.0)
COARSE = RATES[::2]
START = (0.3, 1.0, 3.0)
SEEDS = (0, 1)

Trial = tuple[float, int]
"""A rate and a seed."""


@dataclass(frozen=True)
class Choice:
    """Holds the best rate so far. ``settled``: the search has ended with the best between two others; ``runs``: its
    cost."""

    rate: float
    settled: bool
    runs: int


def losses_of(runs: Mapping[Trial, Learned]) -> dict[Trial, float]:
    """Returns the validation losses at the end of the trials; infinite where a run did not finish."""
    return {
        trial: run.curve[-1].loss if run.status == "ok" and run.curve else math.inf
        for trial, run in runs.items()
        if trial[0] in RATES and trial[1] in SEEDS
    }


def lacking(losses: Mapping[Trial, float]) -> list[Trial]:
    """Returns the trials that the search wants next; none once it has ended."""
    return _search(losses)[0]


def chosen(losses: Mapping[Trial, float]) -> Choice | None:
    """Returns the choice of the search as far as it has come; None before its START is complete."""
    missing, best = _search(losses)
    if best is None:
        return None
    if missing:
        return Choice(best, False, len(losses))
    means = {rate: sum(losses[rate, seed] for seed in SEEDS) for rate in (best, *_around(best))}
    return Choice(min(means, key=lambda rate: (means[rate], rate)), RATES[0] < best < RATES[-1], len(losses))


def _search(losses: Mapping[Trial, float]) -> tuple[list[Trial], float | None]:
    """Returns the trials that are wanted next, and the best rate of the first seed; None before START is complete."""
    first, second = SEEDS
    wanted, best = [(rate, first) for rate in START], None
    while all(trial in losses for trial in wanted):
        best = min((losses[trial], trial[0]) for trial in wanted)[1]
        more = _beyond([rate for rate, _ in wanted], best) or _around(best)
        new = [(rate, first) for rate in more if (rate, first) not in wanted]
        if not new:
            wanted = [(rate, second) for rate in (best, *_around(best))]
            break
        wanted += new
    return [trial for trial in wanted if trial not in losses], best


def _beyond(tried: Sequence[float], best: float) -> list[float]:
    """Returns the next coarse rate beyond the end where the best lies."""
    if min(tried) < best < max(tried) or best not in COARSE:
        return []
    after = COARSE.index(best) + (-1 if best == min(tried) else 1)
    return [COARSE[after]] if 0 <= after < len(COARSE) else []


def _around(rate: float) -> list[float]:
    """Returns its neighbours in RATES."""
    at = RATES.index(rate)
    return [neighbour for neighbour in (RATES[max(0, at - 1)], RATES[min(at + 1, len(RATES) - 1)]) if neighbour != rate]


def in_words(reference: Choice, contender: Choice) -> str:
    """Tells the choice and its cost, for a row's notes."""
    sides = (("the reference's", reference), ("its own", contender))
    open_sides = [name for name, side in sides if not side.settled]
    ended = f"; tuning open: {' and '.join(open_sides)} search has not bracketed the best" if open_sides else ""
    return (
        f"learning rate × {contender.rate:g}, the reference's × {reference.rate:g}: each the best on validation data, "
        f"of {contender.runs} and {reference.runs} runs{ended}"
    )
