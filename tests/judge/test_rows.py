"""Rows from evidence whose truth is known: what is pooled, what is left out, and what is said of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suite.judge.rows import Row, as_dict, pairs, reached, undecided
from suite.record.schema import FIFTHS, Code, Evaluation, Learned, Line, Machine, Renewal, Side, Status, Timed
from tests.factories import (
    CODE,
    MACHINE,
    STEPS,
    conditions,
    counted,
    counters,
    evidence,
    installed,
    learned,
    records,
    row,
    rows,
    ruler_runs,
    side,
    timed,
    timings,
)

ELSEWHERE = Machine(name="another-8c", key="another", facts={"cpu": "other"})
OTHER = Code(trajectory="u" * 32, counts="d" * 32)


def near(value: float, expected: float, tolerance: float = 0.02) -> bool:
    return math.isclose(value, expected, rel_tol=tolerance)


def only(lines: Iterable[Line], stack: str = "x") -> Row:
    (found,) = (each for each in rows(lines) if each.stack == stack)
    return found


def changed(lines: Iterable[Line], kinds: tuple[type, ...], **changes: Any) -> list[Line]:
    """The lines with those of some kinds changed."""
    return [each.model_copy(update=changes) if isinstance(each, kinds) else each for each in lines]


def side_changed(lines: Iterable[Line], at: int = 1, **changes: Any) -> list[Line]:
    """The lines with one side of every timing changed."""

    def of(each: Timed) -> Timed:
        sides = [one.model_copy(update=changes) if i == at else one for i, one in enumerate(each.contenders)]
        return each.model_copy(update={"contenders": sides})

    return [of(each) if isinstance(each, Timed) else each for each in lines]


def broken(stack: str, status: Status, reason: str) -> Side:
    """A process that gave no times."""
    return Side(stack=stack, code=CODE, status=status, reason=reason)


def run_changed(
    lines: Iterable[Line], stack: str = "x", seeds: tuple[int, ...] = (0, 1, 2), **changes: Any
) -> list[Line]:
    """The lines with some runs of a stack changed."""
    return [
        each.model_copy(update=changes)
        if isinstance(each, Learned) and each.stack == stack and each.seed in seeds
        else each
        for each in lines
    ]


# numbers --------------------------------------------------------------------------------------------------------------


def test_the_same_code_twice_comes_out_at_one() -> None:
    same = row("x", seeds=5)
    for metric in ("step_time", "training_time", "whole_time", "loss", "time_to_quality", "equivalent_budget"):
        value = same.metrics[metric]
        assert value.interval is not None
        assert near(value.number, 1.0) and value.interval.contains(1.0), metric
    assert same.metrics["flops"].number == same.metrics["peak_tensor_bytes"].number == 1.0
    assert same.seeds == (0, 1, 2, 3, 4)
    assert 0 < same.detectable_effect < 0.05


def test_swapping_the_sides_inverts_every_ratio() -> None:
    (first,) = pairs(records(timings("x", pace_s=0.03)), lambda _: "baseline", installed)
    swapped = [each.model_copy(update={"contenders": each.contenders[::-1]}) for each in timings("x", pace_s=0.03)]
    (second,) = pairs(records(swapped), lambda _: "baseline", installed)
    assert (second.stack, second.reference) == ("baseline", "x")
    for metric in ("step_time", "training_time", "whole_time"):
        a, b = first.metrics[metric], second.metrics[metric]
        assert a.log is not None and b.log is not None
        assert (a.number, a.log.half_width) == pytest.approx((1 / b.number, b.log.half_width), rel=1e-2)


def test_a_planted_slow_down_is_seen_and_the_quality_keeps_it() -> None:
    slow = row("x", pace_s=0.02 * 1.1)
    for metric, least in (("step_time", 1.05), ("training_time", 1.05), ("time_to_quality", 1.0)):
        value = slow.metrics[metric]
        assert value.interval is not None and value.interval.low > least, metric
        assert near(value.number, 1.1), metric


def test_a_lower_loss_is_worth_the_budget_that_the_reference_would_need() -> None:
    """On a curve of slope -0.2 a loss of 2 * 1.5^-0.2 takes one and a half budgets."""
    better = row("x", final=2.0 * 1.5**-0.2, pace_s=0.02 * 1.2)
    assert near(1 / better.metrics["equivalent_budget"].number, 1.5, 0.05)
    assert near(better.metrics["time_to_quality"].number, 1.2 / 1.5, 0.05)
    assert near(better.metrics["loss"].number, 1.5**-0.2)
    equal_time = better.metrics["loss_at_equal_time"]  # against the reference of 1.2 budgets
    assert near(equal_time.number, (1.5 / 1.2) ** -0.2, 0.01)


def test_a_cost_that_grows_during_training_is_priced_where_it_falls() -> None:
    """A contender that starts at half the cost and ends at the full one trains in three quarters of the time."""
    growing = row("x", pace_s=lambda progress: 0.01 if progress < 0.5 else 0.02, windows=4)
    assert near(growing.metrics["training_time"].number, 0.75)
    each = growing.known.timed[0]
    costs = [each.cost_at(share) - each.cost_at(0.0) for share in (0.25, 0.5, 1.0)]
    assert costs == pytest.approx([0.125, 0.25, 0.75], rel=0.05)


def test_fewer_larger_steps_cost_what_they_take_per_unit_of_progress() -> None:
    """Half as many steps, each twice as long: the same training time, a step time of 2."""
    half = row("x", pace_s=0.04, steps=STEPS // 2)
    assert near(half.metrics["step_time"].number, 2.0)
    assert near(half.metrics["training_time"].number, 1.0)
    assert near(half.metrics["time_to_quality"].number, 1.0)
    assert half.metrics["training_flops"].number == pytest.approx(0.5)


def test_set_up_time_is_charged() -> None:
    """2 s are 100 steps of 0.02 s: half of the whole training."""
    dear = only(side_changed(evidence("x"), setup_s=2.1))
    assert dear.setup is not None and near(dear.setup.estimate, STEPS / 2, 0.05)
    assert near(dear.metrics["time_to_quality"].number, 1.5, 0.04)
    assert near(dear.metrics["training_time"].number, 1.0)
    assert dear.metrics["loss_at_equal_time"].number > 1.05  # the reference had half a budget more


def test_what_a_warm_up_takes_beyond_its_pace_is_set_up_cost() -> None:
    """Compilation is in no contender's setup_s: it happens in its first steps."""
    compiled = only(side_changed(evidence("x"), warmup_s=4.0 + 10 * 0.02, warmup_steps=10))
    assert near(compiled.metrics["training_time"].number, 1.0)
    assert compiled.setup is not None and near(compiled.setup.estimate, STEPS, 0.05)
    assert near(compiled.metrics["time_to_quality"].number, 2.0, 0.05)


def test_rare_expensive_steps_are_noted() -> None:
    """One round in five costs three times as much: the medians do not see it, the note does."""
    lines = evidence("x")
    for each in lines:
        if isinstance(each, Timed):
            blocks = each.contenders[1].windows[0].block_s
            blocks[::5] = [(3 * first, 3 * second) for first, second in blocks[::5]]
    assert any("rare expensive steps" in note for note in only(lines).notes)
    assert not row("x").notes


def test_exact_counts_have_no_interval_and_unknown_is_not_zero() -> None:
    fewer = row("x", points=[counters(flops=5 * 10**8, optimizer_state_bytes=0)])
    assert (fewer.metrics["flops"].number, fewer.metrics["flops"].log) == (0.5, None)
    assert fewer.metrics["optimizer_state_bytes"].number == 0.0
    assert fewer.metrics["communication_bytes"].reason == "not counted"
    assert not fewer.metrics["cuda_allocated_peak_bytes"].known
    uncounted = only([each for each in evidence("x") if each.kind != "counted"])
    assert uncounted.metrics["flops"].reason == "not counted"


def test_flops_are_those_of_the_whole_run_and_bytes_those_of_its_largest_step() -> None:
    pruned = [counters(flops=10**9), counters(flops=5 * 10**8, peak_tensor_bytes=2**22), counters(flops=0)]
    values = row("x", points=[each.model_copy(update={"peak_tensor_bytes": 2**20}) for each in pruned[:1]] + pruned[1:])
    assert values.metrics["flops"].number == pytest.approx(0.5)
    assert values.metrics["peak_tensor_bytes"].number == 1.0


def test_energy_is_of_the_training_and_unavailable_with_a_reason() -> None:
    measured = side(energy={"joules_per_step": 3.0, "kind": "measured_counter", "method": "rapl", "scope": "package"})
    silent = side(energy={"reason": "no RAPL here"}).energy
    lines = evidence("x", steps=STEPS // 2, pace_s=0.04)
    both = side_changed(side_changed(lines, energy=measured.energy), at=0, energy=measured.energy)
    assert only(both).metrics["energy"].number == pytest.approx(0.5)
    assert only(side_changed(lines, energy=measured.energy)).metrics["energy"].kind == "unavailable"
    assert only(side_changed(lines, energy=silent)).metrics["energy"].reason == "no RAPL here"


def test_probes_are_averaged_over_seeds() -> None:
    lines = evidence("x")
    for seed in range(3):
        lines = run_changed(lines, seeds=(seed,), probes={"x.sparsity": 0.1 * seed})
    assert only(lines).probes["x.sparsity"].estimate == pytest.approx(0.1)


def test_coverage_of_the_training_ratio_under_noise_is_honest() -> None:
    """Sets of processes whose paces differ by 1 %, and rounds by 5 %; every row is alone on its board."""
    hits, trials = 0, 60
    for trial in range(trials):
        sets = []
        for replicate in range(3):
            rng = np.random.default_rng([trial, replicate])
            off = np.exp(0.01 * rng.standard_normal(2))
            sides = [
                side(pace_s=0.02 * off[0], noise=0.05, rng=rng),
                side("x", pace_s=0.018 * off[1], noise=0.05, rng=rng),
            ]
            sets.append(timed(sides, replicate))
        interval = only(sets).metrics["training_time"].interval
        hits += interval is not None and interval.contains(0.9)
    assert hits >= 50  # 95 % of 60 is 57; below 50 has a chance of 1 in 2 000


# the scale's ends, failures -------------------------------------------------------------------------------------------


def test_beyond_the_curve_a_row_has_a_bound_with_the_times_conservative_end() -> None:
    worse, better = row("x", final=2.8, pace_s=0.01), row("x", final=1.5, pace_s=0.04)
    low, high = worse.metrics["time_to_quality"], better.metrics["time_to_quality"]
    assert (low.kind, low.at_most, high.kind, high.at_most) == ("bound", False, "bound", True)
    whole = [each.metrics["whole_time"].interval for each in (worse, better)]
    assert whole[0] is not None and low.number == pytest.approx(whole[0].low / 0.35)
    assert whole[1] is not None and high.number == pytest.approx(whole[1].high / 2.8)
    assert "less than 0.35 of the reference's budget" in low.note
    assert not undecided(worse) and not undecided(better)
    alone = row("x", final=2.8, replicates=1)
    assert (
        alone.metrics["time_to_quality"].kind == "unavailable"
        and "time it again" in alone.metrics["time_to_quality"].reason
    )
    assert reached(worse) == 0 and reached(better) == 3


def test_without_a_curve_there_is_no_equivalent_budget_and_the_rest_stays() -> None:
    bare = row("x", ruler=False)
    assert "scaling curve" in bare.metrics["time_to_quality"].reason
    assert bare.metrics["loss"].known and bare.metrics["first_crossing"].known
    assert math.isinf(bare.detectable_effect) and not undecided(bare)


def test_one_seed_has_no_interval_alone_and_the_others_among_rows_and_one_set_of_processes_never() -> None:
    alone = row("x", seeds=1, replicates=1)
    for metric in ("loss", "step_time", "time_to_quality"):
        log = alone.metrics[metric].log
        assert log is not None and math.isinf(log.half_width), metric
    assert any("one set of processes" in note for note in alone.notes)
    crowd = [line for stack in "abcd" for line in evidence(stack)]
    for sets, bounded in ((1, False), (2, True)):
        lines = evidence("x", seeds=1, replicates=sets)
        among = next(each for each in rows(lines, crowd) if each.stack == "x")
        for metric, finite in (("loss", True), ("step_time", bounded), ("time_to_quality", bounded)):
            log = among.metrics[metric].log
            assert log is not None and math.isfinite(log.half_width) == finite, (metric, sets)
        assert not undecided(among) or bounded  # seeds tell nothing of a time


def test_runs_that_diverged_are_named_and_in_every_seed_miss_the_quality() -> None:
    lost = {"status": "diverged", "reason": "the loss became nan at step 3", "final": None}
    one = only(run_changed(evidence("x"), seeds=(1,), **lost))
    assert one.seeds == (0, 2)
    (failed,) = one.failures
    assert (failed.kind, failed.replicate, failed.stack, failed.status) == ("learned", 1, "x", "diverged")
    assert failed.reason == "the loss became nan at step 3"
    every = only(run_changed(evidence("x"), **lost))
    assert every.metrics["time_to_quality"].kind == "missed"
    assert not every.failed  # it was timed and counted


def test_a_reference_that_failed_is_named() -> None:
    crashed = timed([broken("baseline", "out_of_memory", "no room"), side("x")])
    failed = only([crashed])
    assert failed.failed and failed.failures[0].stack == "baseline"
    assert not failed.metrics["time_to_quality"].known


@pytest.mark.parametrize(
    "damage",
    [
        {"windows": [{"progress": 0.0, "block_s": [(0.0, 1.0)] * 20, "block_steps": 2}]},
        {"windows": [{"progress": 0.0, "block_s": [(1.0, 1.0)] * 3, "block_steps": 1}]},
        {"windows": []},
        {"setup_s": None},
        {"steps": None},
    ],
    ids=str,
)
def test_timings_that_make_no_sense_never_stop_the_board(damage: dict[str, Any]) -> None:
    sound = side("x").model_dump()
    lines = side_changed(evidence("x"), **{name: getattr(Side(**sound | damage), name) for name in damage})
    odd = only(lines)
    assert {each.kind for each in odd.failures} == {"timed"} and not odd.metrics["step_time"].known
    assert odd.metrics["loss"].known
    as_dict(odd)


@pytest.mark.parametrize("final", [None, Evaluation(step=STEPS, loss=-1.0), Evaluation(step=STEPS, loss=math.nan)])
def test_losses_that_make_no_sense_never_stop_the_board(final: Evaluation | None) -> None:
    odd = only(run_changed(evidence("x"), seeds=(1,), final=final, curve=[]))
    assert not odd.metrics["time_to_quality"].known and not odd.metrics["loss"].known
    assert odd.metrics["step_time"].known
    as_dict(odd)


# what is pooled -------------------------------------------------------------------------------------------------------


def test_timings_of_one_machine_are_one_row_and_curves_travel() -> None:
    lines = evidence("x")
    there = [each.model_copy(update={"machine": ELSEWHERE, "id": f"e{each.id}"}) for each in timings("x", pace_s=0.04)]
    found = {each.machine.key: each for each in rows(lines, there)}
    assert set(found) == {MACHINE.key, ELSEWHERE.key}
    assert near(found[MACHINE.key].metrics["step_time"].number, 1.0)
    assert near(found[ELSEWHERE.key].metrics["step_time"].number, 2.0)
    assert near(found[ELSEWHERE.key].metrics["time_to_quality"].number, 2.0, 0.04)
    assert found[ELSEWHERE.key].notes == (f"curves learned on {MACHINE.name}",)
    assert found[MACHINE.key].notes == ()


def test_a_timing_of_a_run_s_beginning_alone_is_none_where_its_cost_changes() -> None:
    """A model that grows is cheap at first: by that alone it would look three times as fast as it is."""
    growing, changing = (lambda progress: 0.01 if progress < 0.5 else 0.03), [counters(flops=each) for each in (1, 3)]
    lines = evidence("x", replicates=0, points=changing)
    whole = timings("x", replicates=2, pace_s=growing, windows=FIFTHS)
    early = [each.model_copy(update={"id": f"e{each.id}", "replicate": 2}) for each in timings("x", 1, pace_s=0.01)]
    assert rows(lines, early)[0].known.timed == ()
    assert rows(lines, early, whole)[0].metrics["step_time"] == rows(lines, whole)[0].metrics["step_time"]
    assert len(rows(evidence("x", replicates=0), early)[0].known.timed) == 1, "where the cost is one, it says all"


@pytest.mark.parametrize(("theirs", "whose"), [(4, ELSEWHERE), (3, MACHINE), (2, MACHINE)])
def test_a_row_takes_the_curves_of_which_there_are_most_and_of_equals_its_own(theirs: int, whose: Machine) -> None:
    worse = [
        each.model_copy(update={"machine": ELSEWHERE, "id": f"e{each.id}"})
        for seed in range(theirs)
        for each in (learned(seed=seed), learned("x", seed, final=3.0))
    ]
    mixed = next(each for each in rows(evidence("x"), worse) if each.machine.key == MACHINE.key)
    assert mixed.learned_on == whose.name and near(mixed.metrics["loss"].number, 1.0 if whose is MACHINE else 1.5)
    assert mixed.seeds == tuple(range(max(3, theirs)))


@pytest.mark.parametrize(("sha256", "seeds"), [("baseline 0 2.0", (0, 1, 2)), ("lion 0 2.0", (0,))])
def test_a_stack_that_changes_no_bit_has_the_reference_s_seeds(sha256: str, seeds: tuple[int, ...]) -> None:
    runs = [learned(seed=seed, final=2.0 + seed / 100 * (seed > 0)) for seed in range(3)]
    alike = [learned("lion", trajectory_sha256=sha256), counted(), counted("lion")]
    (row,) = rows(runs, alike)
    assert row.seeds == seeds
    assert row.value("loss").number == 1
    assert len(set(row.records)) == len(row.records)
    assert not row.unverified
    assert any("to the bit" in note for note in row.notes) == (len(seeds) > 1)


def test_other_conditions_are_another_row() -> None:
    there = {"conditions": conditions(size="micro")}
    other = [each.model_copy(update={**there, "id": f"m{each.id}"}) for each in evidence("x", ruler=False)]
    found = rows(evidence("x"), other)
    assert sorted(each.conditions.size for each in found) == ["micro", "nano"]
    assert len({each.board for each in found}) == 2


def test_the_newest_evidence_of_a_replicate_counts() -> None:
    again = [
        each.model_copy(update={"id": f"again{each.id}", "started": "2026-01-02T00:00:00+00:00"})
        for each in evidence("x", pace_s=0.04, final=2.2)
        if each.kind != "counted"
    ]
    newer = only([*again, *evidence("x")])
    assert near(newer.metrics["step_time"].number, 2.0) and near(newer.metrics["loss"].number, 1.1)
    assert len(newer.known.timed) == 3


def test_contenders_of_the_same_stack_are_replicates_of_one_row() -> None:
    twice = [
        timed([side(), side(rng=np.random.default_rng(1)), side(rng=np.random.default_rng(2))], n) for n in range(2)
    ]
    (same,) = rows(twice)
    assert (same.stack, same.reference, len(same.known.timed)) == ("baseline", "baseline", 4)
    assert [each.replicate for each in same.known.timed] == [0, 1, 2, 3]


# code -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: changed(lines, (type(counted()),), code=OTHER), ("counted",)),
        (lambda lines: changed(lines, (Learned,), code=OTHER), ("learned",)),
        (lambda lines: run_changed(lines, code=OTHER), ("learned",)),
        (lambda lines: side_changed(lines, code=OTHER), ("timed",)),
        (lambda lines: side_changed(lines, at=0, code=OTHER), ("timed",)),
        (lambda lines: changed(lines, (Timed,), protocol=0), ("timed",)),
        (lambda lines: side_changed(run_changed(lines, code=OTHER), code=OTHER), ("learned", "timed")),
    ],
)
def test_evidence_of_other_code_stands_and_says_so(change: Any, said: tuple[str, ...]) -> None:
    old = only(change(evidence("x")))
    assert old.unverified == said
    assert near(old.metrics["time_to_quality"].number, 1.0)
    assert row("x").unverified == ()


def test_current_evidence_counts_before_newer_evidence_of_other_code() -> None:
    newer = [
        each.model_copy(update={"id": f"o{each.id}", "started": "2026-02-02T00:00:00+00:00", "code": OTHER})
        for each in evidence("x", final=2.4)
        if isinstance(each, Learned) and each.stack == "x"
    ]
    current = only([*evidence("x"), *newer])
    assert current.unverified == () and near(current.metrics["loss"].number, 1.0)


def test_a_renewal_verifies_all_seeds_of_its_stack_along_any_chain_and_back() -> None:
    family = conditions().family
    old = run_changed(evidence("x"), code=Code(trajectory="old", counts=CODE.counts))

    def renewal(before: str, after: str, stack: str = "x") -> Renewal:
        name = f"{stack}{before}{after}"
        return Renewal(id=name, started="2026-01-02T00:00:00+00:00", family=family, stack=stack, old=before, new=after)

    assert only(old).unverified == ("learned",)
    assert only([*old, renewal("old", CODE.trajectory)]).unverified == ()
    chain = [renewal("between", CODE.trajectory), renewal("old", "between")]
    assert only([*old, *chain]).unverified == ()
    assert only([*old, *chain[:1]]).unverified == ("learned",)
    siblings = [renewal("first", "old"), renewal("first", CODE.trajectory)]
    assert only([*old, *siblings]).unverified == ()
    assert only([*old, renewal("old", CODE.trajectory, "y")]).unverified == ("learned",)


# decided --------------------------------------------------------------------------------------------------------------


def test_a_row_is_undecided_where_more_replicates_could_still_tell() -> None:
    noisy, quiet = row("x", seed_noise=0.03), row("x", seed_noise=0.0002)
    headline = noisy.metrics["time_to_quality"].interval
    assert headline is not None and headline.contains(1.0)
    assert undecided(noisy)
    assert not undecided(quiet)  # it could have seen 5 %, and saw nothing
    assert not undecided(row("x", seed_noise=0.0002, pace_s=0.03))
    far = row("x", seed_noise=0.01, pace_s=0.06)
    assert far.detectable_effect > 0.05 and not undecided(far)  # uncertain in size, not in direction
    assert undecided(row("x", seeds=1))
    assert not undecided(row("x", replicates=0)) and not undecided(row("x", seeds=0))
    just = replace(noisy, detectable_effect=math.log(1.049))
    assert not undecided(just) and undecided(replace(noisy, detectable_effect=math.log(1.051)))


def test_as_dict_is_json_without_infinities() -> None:
    failed = rows([timed([side(), broken("x", "timeout", "slow")])])
    for each in (row("x", seeds=1, replicates=1), row("x"), row("x", final=2.8), *failed, *rows(ruler_runs())):
        json.dumps(as_dict(each), allow_nan=False)
