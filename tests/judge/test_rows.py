import json
import math

import numpy as np
import pytest

from suite.contract.sources import Sources
from suite.judge.rows import as_dict, latest, pairs
from suite.judge.statistics import WITHIN_ONE_SEED
from tests.factories import MACHINE, STEPS, changed, comparison, conditions, contender, counters, failure, record

CURRENT = Sources("h" * 64, {"gpt": "b" * 64}, {"x": "1" * 64, "y": "1" * 64})


def only(records, **options):
    (row,) = pairs(records, **options)
    return row


def near(value, expected, tolerance=0.02):
    return math.isclose(value, expected, rel_tol=tolerance)


def test_the_same_code_twice_comes_out_at_one():
    row = only(comparison("x", seeds=6))
    for metric in ("step_time", "training_time", "time_to_quality", "loss", "loss_at_equal_time"):
        value = row.metrics[metric]
        assert near(value.number, 1.0), metric
        assert value.interval.contains(1.0), metric
    assert row.metrics["flops"].number == row.metrics["peak_tensor_bytes"].number == 1.0
    assert row.seeds == (0, 1, 2, 3, 4, 5)
    assert 0 < row.detectable_effect < 0.02


def test_swapping_the_sides_inverts_every_ratio():
    records = comparison("x", pace_s=0.03)
    swapped = [each.model_copy(update={"contenders": each.contenders[::-1]}) for each in records]
    a, b = only(records).metrics, only(swapped).metrics
    assert a["step_time"].number == pytest.approx(1 / b["step_time"].number)
    assert a["loss"].number == pytest.approx(1 / b["loss"].number)


def test_a_planted_slow_down_is_seen():
    row = only(comparison("x", pace_s=0.02 * 1.1))
    for metric, least in (("step_time", 1.05), ("training_time", 1.05), ("time_to_quality", 1.0)):
        assert row.metrics[metric].interval.low > least, metric
        assert near(row.metrics[metric].number, 1.1), metric


def test_a_cost_that_grows_during_training_is_priced_where_it_falls():
    """A contender that starts at half the cost and ends at the full one trains in three quarters of the time."""
    row = only(comparison("x", pace_s=lambda progress: 0.01 if progress < 0.5 else 0.02))
    assert near(row.metrics["training_time"].number, 0.75, 0.06)  # within half a segment
    each = row.replicates[0]
    assert near(each.costs[-1] / STEPS, math.exp(each.training_log_ratio), 1e-9)
    assert near(each.costs[4] / STEPS, 0.2, 0.06)
    assert near(each.costs[-1] - each.costs[-3], 0.2 * STEPS, 0.06)


def test_fewer_larger_steps_cost_what_they_take_per_unit_of_progress():
    """Half as many steps, each twice as long: the same training time, a step time of 2."""
    row = only(comparison("x", pace_s=0.04, steps=STEPS // 2))
    assert near(row.metrics["step_time"].number, 2.0)
    assert near(row.metrics["training_time"].number, 1.0)
    assert near(row.metrics["time_to_quality"].number, 1.0)
    assert row.metrics["training_flops"].number == pytest.approx(0.5)


def test_set_up_time_is_charged():
    """2 s are 100 steps of 0.02 s: half of the whole training."""
    row = only(comparison("x", setup_s=2.1))
    assert near(row.setup.estimate, STEPS / 2, 0.05)
    assert near(row.metrics["time_to_quality"].number, 1.5, 0.06)
    assert near(row.metrics["training_time"].number, 1.0)
    assert row.metrics["loss_at_equal_time"].number > 1.2  # half of the budget went into the set-up


def test_a_slow_first_round_is_set_up_cost():
    """Compilation is in no contender's setup_s: it happens in the first block."""
    records = comparison("x")
    for each in records:
        each.contenders[1].block_s[0] = (4.0, 0.05)
    row = only(records)
    assert near(row.metrics["training_time"].number, 1.0)
    assert near(row.setup.estimate, STEPS, 0.1)
    assert near(row.metrics["time_to_quality"].number, 2.0, 0.1)


def test_rare_expensive_steps_are_noted():
    """One round in five costs three times as much: the medians do not see it, the note does."""
    records = comparison("x")
    for each in records:
        for r in range(10, 40, 5):
            first, second = each.contenders[1].block_s[r]
            each.contenders[1].block_s[r] = (3 * first, 3 * second)
    assert any("rare expensive steps" in note for note in only(records).notes)
    assert not only(comparison("x")).notes


def test_one_seed_gives_an_interval_that_says_so():
    row = only(comparison("x", seeds=1))
    assert row.metrics["step_time"].log.method == row.metrics["training_time"].log.method == WITHIN_ONE_SEED
    assert math.isinf(row.metrics["loss"].log.half_width)
    assert math.isinf(row.metrics["time_to_quality"].log.half_width)
    assert any("one seed" in note for note in row.notes)


def test_missing_the_quality_is_no_number():
    row = only(comparison("x", final=2.4))
    assert row.metrics["time_to_quality"].kind == "missed"
    assert "20" in row.metrics["time_to_quality"].reason
    assert row.reached == 0
    assert near(row.metrics["loss"].number, 1.2)


def test_a_diverged_seed_misses_the_quality_but_leaves_the_other_seeds_their_numbers():
    records = comparison("x")
    records[1] = record([records[1].reference, failure("x", "diverged", "the loss became nan at step 3")], 1)
    row = only(records)
    assert row.metrics["time_to_quality"].kind == "missed"
    assert row.seeds == (0, 2)
    (failed,) = row.failures
    assert (failed.seed, failed.stack, failed.status, failed.reason) == (
        1, "x", "diverged", "the loss became nan at step 3",
    )  # fmt: skip


def test_a_reference_that_failed_is_named():
    (row,) = pairs([record([failure("baseline", "out_of_memory", "no room"), contender("x")])])
    assert row.failed
    assert row.failures[0].stack == "baseline"
    assert not row.metrics["time_to_quality"].known


def test_failures_without_data_belong_to_the_conditions_that_are_otherwise_the_same():
    unknown = conditions(data="", data_sha256="")
    nowhere = record([contender(), failure("x", "unavailable", "needs CUDA")], 3, conditions=unknown)
    row = only([*comparison("x"), nowhere])
    assert row.seeds == (0, 1, 2)
    assert len(row.failures) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"machine": MACHINE.model_copy(update={"key": "other"})},
        {"harness_sha256": "other"},
        {"baseline_sha256": "other"},
        {"conditions": conditions(steps=100)},
        {"pairing": "sequential"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_not_comparable_is_not_pooled(change):
    records = comparison("x", seeds=2)
    assert len(pairs([records[0], records[1].model_copy(update=change)])) == 2


def test_code_of_another_hash_is_not_pooled_and_is_stale():
    old = changed(comparison("x"), sources={"x": "0" * 64})
    rows = pairs([*old, *comparison("x", seeds=2)], CURRENT)
    assert [row.stale for row in rows] == [("x changed",), ()]
    assert [row.seeds for row in latest(rows)] == [(0, 1)]
    assert [row.stale for row in latest(pairs(old, CURRENT))] == [("x changed",)]


def test_everything_that_makes_a_row_stale_is_named():
    row = only(comparison("z"), current=Sources("other", {}, {}))
    assert row.stale == ("the harness changed", "the baseline gpt is not installed", "z is not installed")


def test_the_newest_record_of_a_seed_counts():
    (first, second) = comparison("x", seeds=1), comparison("x", seeds=1, pace_s=0.04)
    again = second[0].model_copy(update={"id": "again", "started": "2026-01-02T00:00:00+00:00"})
    assert near(only([again, *first]).metrics["step_time"].number, 2.0)


def test_contenders_of_the_same_stack_are_separate_rows():
    made = [record([contender(), contender(), contender()], seed) for seed in range(3)]
    rows = pairs(made)
    assert [(row.stack, row.reference, row.seeds) for row in rows] == [("baseline", "baseline", (0, 1, 2))] * 2


def test_a_schedule_fitted_to_the_budget_beats_reading_the_curve():
    cut = only(comparison("x", pace_s=0.04)).metrics["loss_at_equal_time"]
    assert "undecayed" in cut.note
    assert cut.number > 1.2
    fitted = only(comparison("x", pace_s=0.04, equal_time={"steps": 100, "loss": 2.1})).metrics["loss_at_equal_time"]
    assert fitted.number == pytest.approx(2.1 / 2.0, rel=0.01)
    assert "fitted" in fitted.note


def test_exact_counts_have_no_interval_and_unknown_is_not_zero():
    row = only(comparison("x", counters=counters(flops=5 * 10**8, optimizer_state_bytes=0)))
    assert row.metrics["flops"].number == 0.5
    assert row.metrics["flops"].log is None
    assert row.metrics["optimizer_state_bytes"].number == 0.0
    assert row.metrics["communication_bytes"].reason == "not counted"
    assert not row.metrics["cuda_allocated_peak_bytes"].known
    uncounted = only(comparison("x", counters=None))
    assert uncounted.metrics["flops"].reason == "not counted"


def test_energy_is_of_the_training_and_unavailable_with_a_reason():
    measured = {"joules_per_step": 3.0, "kind": "measured_counter", "method": "rapl", "scope": "package"}
    records = comparison("x", energy=measured, steps=STEPS // 2)
    assert only(records).metrics["energy"].kind == "unavailable"  # the reference has none
    both = [
        record([each.reference.model_copy(update={"energy": each.contenders[1].energy}), each.contenders[1]], each.seed)
        for each in records
    ]
    assert only(both).metrics["energy"].number == pytest.approx(0.5)
    silent = only(comparison("x", energy={"reason": "no RAPL here"}))
    assert silent.metrics["energy"].reason == "no RAPL here"


@pytest.mark.parametrize(
    "damage",
    [
        {"block_s": [(0.0, 1.0)] * 40},
        {"block_steps": [(1, 1)] * 3},
        {"block_s": [], "block_steps": []},
        {"curve": []},
        {"curve": [{"step": 200, "loss": 2.0}]},
        {"setup_s": None},
        {"steps": None},
        {"curve": [{"step": 0, "loss": 4.0}, {"step": 200, "loss": -1.0}]},
    ],
    ids=str,
)
def test_samples_that_make_no_sense_never_stop_the_board(damage):
    row = only(changed(comparison("x"), **damage))
    assert row.failures or not row.metrics["time_to_quality"].known
    as_dict(row)


def test_probes_are_averaged_over_seeds():
    records = [changed([each], probes={"x.sparsity": 0.1 * each.seed})[0] for each in comparison("x")]
    assert only(records).probes["x.sparsity"].estimate == pytest.approx(0.1)


def test_coverage_of_the_training_ratio_under_noise_is_honest():
    """Intervals over 4 seeds whose paces differ by 1 % must cover the truth nearly always."""
    hits = 0
    for trial in range(40):
        records = []
        for seed in range(4):
            rng = np.random.default_rng([trial, seed])
            jitter = np.exp(0.01 * rng.standard_normal(2))
            records.append(
                record(
                    [contender(pace_s=0.02 * jitter[0], noise=0.05, rng=rng),
                     contender("x", pace_s=0.018 * jitter[1], noise=0.05, rng=rng)], seed
                )
            )  # fmt: skip
        hits += only(records).metrics["training_time"].interval.contains(0.9)
    assert hits >= 34  # 95 % of 40 is 38; below 34 has a chance of 1 in 500


def test_as_dict_is_json_without_infinities():
    failed = [record([contender(), failure("x", "timeout", "slow")])]
    for records in (comparison("x", seeds=1), comparison("x"), failed):
        json.dumps(as_dict(only(records)), allow_nan=False)
