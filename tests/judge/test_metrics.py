"""The registry: every metric is read alike for a seed and for a row, and every counter is one without an entry."""

from __future__ import annotations

import math

import pytest
from suite.judge.replicate import Replicate, replicate_of

from suite.judge.metrics import (
    BY_ROUND,
    COLUMNS,
    IN_HISTORY,
    METRICS,
    Metric,
    Seeds,
    log_cost_ratios,
    metric_of,
    metrics_in,
    values,
)
from suite.judge.statistics import median
from suite.record.schema import COUNTS, Energy, Memory
from tests.factories import comparison, contender, counters, record


def seed(**changes: object) -> Replicate:
    """A seed that has every metric."""
    known = {
        "energy": Energy(joules_per_step=2.0, kind="measured_counter"),
        "memory": Memory(process_peak_bytes=3, cuda_allocated_peak_bytes=4, cuda_reserved_peak_bytes=5),
    }
    all_counters = counters(communication_bytes=7)
    reference = contender(**known, counters=all_counters, noise=0.0)  # type: ignore[arg-type]
    values = {"pace_s": 0.03, "final": 1.9, "noise": 0.0, "counters": all_counters, **known} | changes
    return replicate_of(record([reference, contender("x", **values)]), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_row_of_one_seed_has_the_seed_s_ratio(metric: Metric) -> None:
    each = seed()
    value = values(Seeds([each]))[metric.name]
    assert value.known, value.reason
    assert value.number == pytest.approx(math.exp(metric.log_cost_ratio(each)), rel=1e-9)
    assert (value.kind == "exact") == metric.exact
    assert value.reference is not None and value.contender is not None
    assert value.contender / value.reference == pytest.approx(value.number, rel=1e-9)


def test_every_counter_is_a_metric_and_says_what_it_is_where_it_is_declared() -> None:
    for name, count in COUNTS.items():
        metric = METRICS[name]
        assert (metric.title, metric.unit, metric.exact) == (count.title, count.unit, True)
        assert metric.direction == ("lower" if count.cost else "none")


def test_the_board_s_columns_stand_in_their_order() -> None:
    assert [each.name for each in COLUMNS] == [
        "time_to_quality", "step_time", "training_time", "peak_tensor_bytes", "process_peak_bytes",
        "cuda_allocated_peak_bytes", "energy", "loss", "loss_at_equal_time", "training_flops",
    ]  # fmt: skip
    assert [each.arrow for each in COLUMNS] == ["↑", *["↓"] * 9]


def test_families_have_the_members_that_occur() -> None:
    names = [each.name for each in metrics_in([seed()])]
    assert [name for name in names if name.startswith("peak.")] == ["peak.activations", "peak.parameters"]
    peak, score = metric_of("peak.gradients"), metric_of("final.accuracy")
    assert peak is not None and peak.exact and peak.repeatable
    assert score is not None and score.repeatable and not score.exact and score.quality
    assert metric_of("probe.x.kept") is None


def test_rounds_have_the_seed_s_ratio_as_their_median() -> None:
    (noisy,) = comparison("x", seeds=1, pace_s=0.03)
    each = replicate_of(noisy, 1)
    by_title = {metric.title: metric for metric in METRICS.values()}
    assert set(BY_ROUND) == {"step time", "training time"}
    for title, samples in BY_ROUND.items():
        assert median(samples(each)) == pytest.approx(by_title[title].log_cost_ratio(each))


def test_a_seed_leaves_out_what_it_does_not_have() -> None:
    ratios = log_cost_ratios(seed(counters=None, curve=[]), IN_HISTORY)
    assert set(ratios) == {"step_time", "training_time"}
