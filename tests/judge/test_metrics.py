"""The registry: every metric is read alike for a replicate and for a row, and every counter is one without an entry."""

from __future__ import annotations

import math

import pytest

from suite.judge.known import Known, LearnedPair, timed_pair
from suite.judge.metrics import (
    BY_ROUND,
    COLUMNS,
    IN_HISTORY,
    METRICS,
    Metric,
    metric_of,
    metrics_in,
    priors,
    samples,
    values,
)
from suite.judge.ruler import ruler_of
from suite.judge.statistics import median
from suite.record.schema import COUNTS, Energy, Machine, Memory
from tests.factories import (
    MACHINE,
    ROUNDS,
    STEPS,
    counted,
    counters,
    evidence,
    learned,
    row,
    rows,
    ruler_runs,
    side,
    timed,
)

MASKED = {"x.relative_flops": 0.2}
XEON: Machine = MACHINE.model_copy(update={"facts": {"cpu": "Intel Xeon"}})


def known(replicates: int = 1, **changes: object) -> Known:
    """A pair that has every metric."""
    process = {
        "energy": Energy(joules_per_step=2.0, kind="measured_counter"),
        "memory": Memory(
            process_start_bytes=1, process_peak_bytes=3, cuda_allocated_peak_bytes=4, cuda_reserved_peak_bytes=5
        ),
        "noise": 0.0,
        "windows": 2,
    }
    counts = [counters(communication_bytes=7, host_bytes=5)]
    sides = [side(**process), side("x", pace_s=0.03, **process)]  # type: ignore[arg-type]
    parts = {
        "counted": (counted(points=counts), counted("x", points=counts)),
        "learned": [
            LearnedPair(learned(seed=each), learned("x", each, final=1.9, probes=MASKED)) for each in range(replicates)
        ],
        "timed": [timed_pair(timed(sides, each, machine=XEON), 1) for each in range(replicates)],
        "ruler": ruler_of(ruler_runs(), STEPS),
    }
    return Known(**parts | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_row_of_equal_replicates_has_the_replicate_s_ratio(metric: Metric) -> None:
    each = known(replicates=2)
    value = values(each, {})[metric.name]
    assert value.known, value.reason
    ratios = set(metric.samples(each).values())
    assert len(ratios) == 1
    assert value.number == pytest.approx(math.exp(ratios.pop()), rel=1e-9)
    assert (value.kind == "exact") == metric.exact
    assert value.log is None or value.log.half_width < 0.05  # of the curve alone
    assert value.reference is not None and value.contender is not None
    quantities = value.contender / value.reference
    a_gain = metric.name == "equivalent_budget"  # the one quantity of which more is better
    assert quantities == pytest.approx(1 / value.number if a_gain else value.number, rel=1e-9)


def test_every_counter_is_a_metric_and_says_what_it_is_where_it_is_declared() -> None:
    for name, count in COUNTS.items():
        metric = METRICS[name]
        assert (metric.title, metric.unit, metric.exact) == (count.title, count.unit, True)
        assert metric.direction == ("lower" if count.cost else "none")


def test_each_column_of_the_board_has_a_place_of_its_own_after_the_headline_s() -> None:
    places = [each.uses.column for each in COLUMNS]
    assert places == sorted({*places})
    assert [each.name for each in COLUMNS[:3]] == ["time_to_quality", "equivalent_budget", "step_time"]
    assert [each.arrow for each in COLUMNS[:3]] == ["↑", "↑", "↓"]


def test_a_process_s_peak_over_its_start_is_unknown_where_the_start_was_not_recorded() -> None:
    each = known()
    assert values(each, {})["process_added_bytes"].contender == 2
    sides = [side(), side("x")]  # as stored before there was a start
    assert sides[0].memory.process_start_bytes is None
    older = known(timed=[timed_pair(timed(sides, 0, machine=XEON), 1)])
    assert values(older, {})["process_added_bytes"].reason == "not recorded, or not readable on this machine"


def test_counts_of_one_of_several_ranks_say_so_and_operators_without_formula_are_named() -> None:
    alone, shared = counters(), counters(ranks=2, uncounted_operators={"aten.x": 3})
    each = known(counted=(counted(points=[alone]), counted("x", points=[shared])))
    assert values(each, {})["peak_tensor_bytes"].note == "of one of 2 ranks"
    assert values(each, {})["flops"].note == "of one of 2 ranks; lower bounds, without FLOPs of aten.x"


def test_flops_of_the_training_are_those_of_whole_runs_where_they_were_tallied() -> None:
    of_steps = values(known(), {})["training_flops"]
    runs = [LearnedPair(learned(seed=seed, flops=100), learned("x", seed, flops=40 + 20 * seed)) for seed in range(2)]
    assert values(known(learned=runs), {})["training_flops"].number == pytest.approx(0.5)
    # what equals the reference to the bit has its runs stand for it, and other FLOPs
    stand_in = LearnedPair(learned(seed=2, flops=100), learned(seed=2, flops=100))
    assert values(known(learned=[*runs, stand_in]), {})["training_flops"].number == pytest.approx(0.5)
    older = [LearnedPair(learned(seed=0), learned("x", 0, flops=40))]
    assert values(known(learned=older), {})["training_flops"] == of_steps


def test_what_a_kernel_would_skip_is_the_technique_s_own_count_and_a_model_s_number() -> None:
    value = values(known(replicates=2), {})["flops_without_zeros"]
    assert (value.kind, value.number, value.log) == ("modelled", pytest.approx(0.2), None)
    dense = known(learned=[LearnedPair(learned(seed=0), learned("x", 0))])
    assert values(dense, {})["flops_without_zeros"].reason == "it masks no weights, or has not learned"


def test_families_have_the_members_that_occur() -> None:
    names = [each.name for each in metrics_in(known())]
    assert [name for name in names if name.startswith("peak.")] == ["peak.activations", "peak.parameters"]
    assert "final.accuracy" in names
    peak, score = metric_of("peak.gradients"), metric_of("final.accuracy")
    assert peak is not None and peak.exact and peak.repeatable
    assert score is not None and score.repeatable and not score.exact and score.quality
    assert metric_of("probe.x.kept") is None


def test_rounds_have_the_ratio_of_their_set_of_processes_as_their_median() -> None:
    (each,) = row("x", replicates=1, pace_s=0.03, windows=2).known.timed
    by_title = {metric.title: metric for metric in METRICS.values()}
    assert set(BY_ROUND) == {"step time", "training time"}
    for title in BY_ROUND:
        (ratio,) = by_title[title].samples(Known(timed=[each])).values()
        assert median(BY_ROUND[title](each)) == pytest.approx(ratio, abs=0.002)


def test_a_pair_leaves_out_what_it_does_not_have() -> None:
    everything = set(samples(known(), IN_HISTORY))
    assert everything == {"step_time", "training_time", "loss", "peak_tensor_bytes", "flops"}
    assert set(samples(known(counted=(None, None), learned=()), IN_HISTORY)) == {"step_time", "training_time"}
    assert set(samples(known(counted=(None, None), timed=()), IN_HISTORY)) == {"loss"}


def test_the_time_to_the_same_quality_is_the_cost_over_the_equivalent_budget_and_as_uncertain_as_both() -> None:
    """ln ratio = ln cost - ln budget, the variances of both added."""
    each = row("x", final=1.95, pace_s=0.025, seeds=4)
    headline, cost, budget = (each.metrics[name].log for name in ("time_to_quality", "whole_time", "equivalent_budget"))
    assert headline is not None and cost is not None and budget is not None
    assert headline.estimate == pytest.approx(cost.estimate + budget.estimate)
    assert headline.standard_error == pytest.approx(math.hypot(cost.standard_error, budget.standard_error))


def test_rows_share_the_variance_of_a_metric_and_no_other() -> None:
    """Twenty techniques tell how seeds differ, and their times how processes do."""
    board = rows(*(evidence(stack, seed_noise=0.01) for stack in "abcdefghijklmnopqrst"))
    shared = priors([each.known for each in board])
    rounds = math.pi / 2 * 0.01**2 / ROUNDS  # of the median of rounds
    for metric, variance in (("loss", 2 * 0.01**2), ("step_time", 2 * 0.002**2 + rounds)):
        assert 1 / 1.5 < math.sqrt(shared[metric].variance / variance) < 1.5
    assert "time_to_quality" not in shared  # its two parts are
    assert {"equivalent_budget", "whole_time"} <= set(shared)
    widths = [each.metrics["loss"].log.half_width for each in board if each.metrics["loss"].log]
    assert max(widths) / min(widths) < 4  # Student's, of three seeds each, differ by far more


def test_the_step_time_at_the_end_is_of_the_last_part_that_was_timed() -> None:
    """A contender that grows to the reference's size: what it saved before does not count."""
    grows = side("x", pace_s=lambda progress: 0.02 if progress > 0.3 else 0.01, windows=5, noise=0.0)
    sides = [side(windows=5, noise=0.0), grows]
    each = Known(timed=[timed_pair(timed(sides, 0), 1)])
    read = samples(each, [METRICS["step_time_at_end"], METRICS["step_time"]])
    assert read["step_time_at_end"] == {0: pytest.approx(0.0)}
    assert read["step_time"][0] <= 0.0
    assert "step time at the end" not in BY_ROUND
    whole = Known(timed=[timed_pair(timed([side(), side("x")], 0), 1)])
    assert "the end of the run was not timed" in values(whole, {})["step_time_at_end"].reason
