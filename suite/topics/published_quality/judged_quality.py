"""Judges published results as their sources did not: with an interval, the smallest change that they could have shown,
and the equivalent budget where the source has a curve of its reference.

Two sides of seeds have Welch's interval of the difference of their means; where a source gives medians with ranges, of
the medians, whose deviations the ranges tell (Tippett 1925). Without seeds, a source that says how far off
a value may be gives the difference plus and minus that of both sides, added in squares. One run on each side that says
nothing of its scatter has no interval, and no verdict.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median
from typing import Literal

import numpy as np

from suite.judge.ruler import FEWEST, Ruler
from suite.judge.statistics import OVER_REPLICATES, Interval, detectable_effect, difference_interval
from suite.topics.published_quality.quality_rows import PublishedQuality, quality_by_technique, quality_rows

LEVEL = 0.95
Word = Literal["better", "worse", "no difference shown", "not judged"]
COUNTED_UNITS: Mapping[str, str] = {"samples to the target, mean": "samples", "epochs to the target, mean": "epochs"}
"""Metrics that are themselves a budget, and its unit."""

RANGES = re.compile(
    r"range (?P<low>[\d.]+)-(?P<high>[\d.]+) against (?P<low_reference>[\d.]+)-(?P<high_reference>[\d.]+)"
)
SKEWED = 0.1  # of the range: so near to an end are the medians of 4 % of normal samples of five
OF_A_RANGE: Mapping[int, tuple[float, float, float]] = {
    3: (1.693, 1.98, 0.449),
    4: (2.059, 2.93, 0.298),
    5: (2.326, 3.83, 0.287),
}
"""By a normal sample's size: its expected range in standard deviations, the degrees of freedom of a deviation that is
estimated by it (Pearson and Hartley 1954, tables 27 and 30), and its median's variance in variances."""


@dataclass(frozen=True)
class JudgedQuality:
    """Judges one published row.

    Attributes:
        gain: the technique's value over the reference's, in the metric's unit, positive where it is better; None where
            the source has no pair of numbers.
        basis: what the interval of ``gain`` rests on.
        budget: the equivalent budget, off the reference's own curve where the source has one; ``unit`` is its unit.
    """

    row: PublishedQuality
    gain: Interval | None
    basis: str
    budget: Interval | None = None
    unit: str = ""

    @property
    def word(self) -> Word:
        """Says better or worse where the interval lies on one side, and nothing where there is none."""
        if self.gain is None or not math.isfinite(self.gain.half_width):
            return "not judged"
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "no difference shown"

    @property
    def sign(self) -> int:
        """Returns 1 where the published value is better, -1 where it is worse; of what has no pair of values, the
        published budget's; 0 where both are equal or unsaid."""
        if self.gain is not None:
            return (self.gain.estimate > 0) - (self.gain.estimate < 0)
        ratio = self.row.budget_ratio or 1.0
        return (ratio > 1) - (ratio < 1)

    @property
    def detectable(self) -> float:
        """Returns the smallest difference, in the metric's unit, that these seeds would have shown with a probability
        of 80 %; infinite without seeds."""
        return detectable_effect(self.gain) if self.gain and self.basis.startswith("Welch") else math.inf


def judged(row: PublishedQuality) -> JudgedQuality:
    """Judges one row."""
    if row.value is None or row.value_reference is None:
        return JudgedQuality(row, None, row.unfinished or "the source has no pair of values")
    gain, basis = _gain(row)
    budget, unit = _budget(row, gain)
    return JudgedQuality(row, gain, basis, budget, unit)


def _gain(row: PublishedQuality) -> tuple[Interval, str]:
    assert row.value is not None and row.value_reference is not None
    direction = 1.0 if row.better == "higher" else -1.0
    sides = ((row.value, row.sd, row.seeds), (row.value_reference, row.sd_reference, row.seeds_reference))
    ours, theirs = (_mean(direction * value, sd, n) for value, sd, n in sides)
    if math.isfinite(ours.half_width + theirs.half_width):
        return difference_interval(ours, theirs), f"Welch, {ours.n} against {theirs.n} runs"
    centre = direction * (row.value - row.value_reference)
    if (by_ranges := _medians(row, direction)) is not None:
        gain = difference_interval(*by_ranges)
        skewed = "a median near an end of its range, which tells no deviation then"
        known = f"Welch, by ranges of {row.seeds} against {row.seeds_reference} runs"
        return gain, known if math.isfinite(gain.half_width) else skewed
    if row.half_width is not None:
        return _within(centre, math.sqrt(2) * row.half_width), "the stated error of a value"
    return _within(centre, math.inf), "no scatter is published"


def _medians(row: PublishedQuality, direction: float) -> tuple[Interval, Interval] | None:
    """Returns the intervals of both medians by the published ranges; None where there are none, or of too many runs."""
    from scipy import stats

    ranges, sizes = RANGES.match(row.uncertainty), (row.seeds or 0, row.seeds_reference or 0)
    if ranges is None or row.value is None or row.value_reference is None or not {*sizes} <= OF_A_RANGE.keys():
        return None

    def median_of(value: float, side: str, n: int) -> Interval:
        width, freedom, variance = OF_A_RANGE[n]
        low, high = float(ranges[f"low{side}"]), float(ranges[f"high{side}"])
        deviation = (high - low) / width if SKEWED <= (value - low) / (high - low) <= 1 - SKEWED else math.inf
        half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * deviation * math.sqrt(variance)
        centre = direction * value
        return Interval(centre, centre - half, centre + half, LEVEL, OVER_REPLICATES, n, freedom)

    return median_of(row.value, "", sizes[0]), median_of(row.value_reference, "_reference", sizes[1])


def _within(centre: float, half: float, n: int = 1) -> Interval:
    """Returns an interval that no seeds are behind."""
    return Interval(centre, centre - half, centre + half, LEVEL, OVER_REPLICATES, n, 0)


def _mean(value: float, sd: float | None, n: int | None) -> Interval:
    """Returns the interval of a mean of ``n`` runs; unbounded where the source does not say their scatter."""
    from scipy import stats  # half a second that nobody needs who asks for the rows alone

    if not sd or not n or n < 2:
        return Interval(value, -math.inf, math.inf, LEVEL, OVER_REPLICATES, n or 1, 0)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    return Interval(value, value - half, value + half, LEVEL, OVER_REPLICATES, n, n - 1)


# the equivalent budget ----------------------------------------------------------------------------------------------


def _budget(row: PublishedQuality, gain: Interval) -> tuple[Interval | None, str]:
    """Returns the equivalent budget that can be recomputed, and its unit."""
    if unit := COUNTED_UNITS.get(row.metric):
        return _ratio_of_counts(row, gain), unit
    curve, own = _curves().get(_curve_of(row)), _budget_of(row)
    if curve is None or own is None or row.value is None or row.better != "lower":
        return None, ""
    half = math.sqrt(2) * row.half_width if row.half_width else math.inf
    worst, best = row.value + half, row.value - half
    low, high = (curve.log_budget(worst), curve.log_budget(best)) if half < math.inf else (-math.inf, math.inf)
    at, low, high = (math.exp(x - math.log(own)) for x in (curve.log_budget(row.value), low, high))
    return Interval(at, low, high, LEVEL, OVER_REPLICATES, 1, 0), "tokens"


def _ratio_of_counts(row: PublishedQuality, gain: Interval) -> Interval:
    """Returns reference over technique of two mean counts, by the delta method in their logarithms."""
    assert row.value and row.value_reference
    centre = math.log(row.value_reference / row.value)
    sides = ((row.value, row.sd, row.seeds), (row.value_reference, row.sd_reference, row.seeds_reference))
    errors = [sd / value / math.sqrt(n) if sd and n else math.inf for value, sd, n in sides]
    half = math.hypot(*errors) / gain.standard_error * gain.half_width if math.isfinite(sum(errors)) else math.inf
    return _within(centre, half, gain.n).ratio()


def _curve_of(row: PublishedQuality) -> tuple[str, str, float | None]:
    return row.table, row.reference, row.parameters


def _budget_of(row: PublishedQuality) -> float | None:
    """Returns a budget in tokens that its words begin with, such as "10B tokens (4x Chinchilla)": the multiple where
    there is one, which is exact where the number of tokens is rounded."""
    if multiple := re.search(r"\((\d+)x Chinchilla\)", row.budget):
        return float(multiple[1])
    tokens = re.match(r"([\d.]+)B tokens", row.budget)
    return float(tokens[1]) if tokens else None


@cache
def _curves() -> Mapping[tuple[str, str, float | None], Ruler]:
    """Returns the references that were trained at several budgets, as rulers in the unit of :func:`_budget_of`."""
    points: dict[tuple[str, str, float | None], dict[float, float]] = defaultdict(dict)
    for row in quality_rows():
        if row.better == "lower" and row.value_reference and (budget := _budget_of(row)):
            points[_curve_of(row)][budget] = row.value_reference
    return {
        key: Ruler(tuple(budgets), np.array([[own[budget] for budget in budgets]]))
        for key, own in points.items()
        if len(budgets := sorted(own)) >= FEWEST
    }


# of a technique -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QualityByOthers:
    """Sums up what others measured of one technique; ``every`` row is judged."""

    technique: str
    every: Sequence[JudgedQuality]

    @cached_property
    def at_scale(self) -> list[JudgedQuality]:
        """Returns the rows of Transformers of 10 million parameters and more; those with one side alone tuned, only
        where there are no others."""
        every = [one for one in self.every if one.row.scale == "transformer"]
        return [one for one in every if one.row.tuned != "no"] or every

    @cached_property
    def budgets(self) -> Mapping[str, list[tuple[float, JudgedQuality]]]:
        """Returns the equivalent budgets of the rows at scale, by their unit: as judged, else as published."""
        found: dict[str, list[tuple[float, JudgedQuality]]] = defaultdict(list)
        for one in self.at_scale:
            if one.budget is not None:
                found[one.unit].append((one.budget.estimate, one))
            elif one.row.budget_ratio is not None:
                found[one.row.unit].append((one.row.budget_ratio, one))
        return found

    @property
    def parameters(self) -> float | None:
        """Returns the size of the largest model behind :attr:`words` that is known."""
        behind = [one for _, one in self.budgets[self.main_unit]] if self.main_unit else self.at_scale
        return max((one.row.parameters for one in behind if one.row.parameters), default=None)

    @property
    def by_authors_alone(self) -> bool:
        """Tells whether nobody but the technique's own authors measured it at scale."""
        return all(one.row.authors for one in self.at_scale)

    @property
    def direction(self) -> int:
        """Returns 1 or -1 where at least three quarters of the rows at scale point one way, rows without a direction
        counted against both; else 0."""
        signs = [one.sign for one in self.at_scale]
        return next((way for way in (1, -1) if signs and signs.count(way) >= 0.75 * len(signs)), 0)

    @property
    def main_unit(self) -> str:
        """Returns the unit of budgets that most rows at scale have; empty where none has one."""
        return max(self.budgets, key=lambda unit: len(self.budgets[unit]), default="")

    @property
    def words(self) -> str:
        """Sums up in a line: the median budget with its range and unit, or how many rows are better."""
        if not self.at_scale:
            return ""
        if self.main_unit:
            values = sorted(value for value, _ in self.budgets[self.main_unit])
            spread = f" ({values[0]:.2f}–{values[-1]:.2f})" if len(values) > 1 else ""
            return f"×{median(values):.2f}{spread} {self.main_unit}"
        signs = [one.sign for one in self.at_scale]
        return f"{signs.count(1)} of {len(signs)} better"

    def agrees(self, here: Iterable[Interval]) -> str:
        """Compares the direction with that of rows measured here, by the intervals of their equivalent budgets."""
        known = list(here)
        ways = {1 if one.low > 1 else -1 for one in known if one.low > 1 or one.high < 1}
        if not self.at_scale:
            return "nothing published at scale"
        if not known:
            return "no row here"
        if not ways:
            return "undecided here"
        if len(ways) > 1:
            return "rows here differ among themselves"
        if not self.direction:
            return "published rows point both ways"
        return "agrees in direction" if ways == {self.direction} else "opposite direction here"


@cache
def quality_by_others(technique: str) -> QualityByOthers | None:
    """Sums up what others measured of a technique; None where nothing is published."""
    rows = quality_by_technique().get(technique, ())
    return QualityByOthers(technique, tuple(map(judged, rows))) if rows else None
