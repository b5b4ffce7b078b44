"""The trend over sizes: a line of known slope is found, with the error of its points, and one size has none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.judge.metrics import MetricValue
from suite.judge.rows import Row
from suite.judge.statistics import Interval
from suite.judge.trend import compute_of, in_words, trend
from tests.factories import counters, evidence
from tests.show.samples import on, shown


def at(size: str, budget: float, half: float, flops: int, version: int = 1) -> Row:
    """A row whose reference takes so many FLOPs a step."""
    (row,) = shown(on(evidence("x"), size=size))
    reference = row.known.counted[0]
    assert reference is not None
    point = reference.points[0].model_copy(update={"counters": counters(flops=flops)})
    counted = reference.model_copy(update={"points": [point]})
    log = Interval(-math.log(budget), -math.log(budget) - half, -math.log(budget) + half, 0.95, "t", 3)
    return replace(
        row,
        known=replace(row.known, counted=(counted, row.known.counted[1])),
        metrics={"equivalent_budget": MetricValue("measured", 1 / budget, log)},
        conditions=row.conditions.model_copy(update={"baseline_version": version}),
    )


def test_a_line_of_known_slope_is_found_over_decades_of_compute() -> None:
    rows = [at("nano", 1.0, 0.02, 10**6), at("micro", 1.1, 0.02, 10**7), at("mini", 1.21, 0.02, 10**8)]
    assert compute_of(rows[0]) == 10**6 * rows[0].conditions.steps
    slope = trend(rows)
    assert slope is not None and slope.n == 3
    assert slope.estimate == pytest.approx(math.log(1.1)) and slope.contains(math.log(1.1))
    assert slope.half_width == pytest.approx(0.02 / math.sqrt(2), rel=1e-6)
    assert in_words(slope) == "↗" and in_words(trend(reversed(rows))) == "↗"
    falling = trend([at("nano", 1.2, 0.02, 10**6), at("micro", 1.0, 0.02, 10**7)])
    assert in_words(falling) == "↘"


def test_what_errors_explain_is_no_trend_and_one_size_or_two_versions_have_none() -> None:
    assert in_words(trend([at("nano", 1.0, 0.2, 10**6), at("micro", 1.1, 0.2, 10**7)])) == "cannot tell"
    assert trend([at("nano", 1.0, 0.02, 10**6)]) is None and in_words(None) == "one size"
    assert trend([at("nano", 1.0, 0.02, 10**6), at("micro", 1.1, 0.02, 10**7, version=2)]) is None
    assert trend([]) is None


def test_of_two_ladders_the_newest_versions_is_read() -> None:
    old = [at("nano", 1.2, 0.02, 10**6), at("micro", 1.0, 0.02, 10**7)]
    new = [at("nano", 1.0, 0.02, 10**6, version=2), at("micro", 1.2, 0.02, 10**7, version=2)]
    assert [in_words(trend(rows)) for rows in (old + new, new + old, [*old, new[0]])] == ["↗", "↗", "↘"]
