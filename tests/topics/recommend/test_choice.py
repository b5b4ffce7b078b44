"""The choice among stacks: what goes together, what is ordered how, what fits, and who is left after a rung."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from suite.record.job import BASELINE
from suite.topics.recommend.choice import (
    A_CATEGORY,
    BY_FLOPS,
    GOALS,
    KEEPS,
    MOST_MEMBERS,
    Candidate,
    Estimate,
    Goal,
    Member,
    StepCost,
    Trial,
    by_promise,
    candidate,
    conflict,
    counted,
    halved,
    paired,
    ranked,
    rungs,
    shortlist,
    spelled,
    stacks,
    together,
    useful,
    without_each,
)

PLAIN = StepCost(stack=BASELINE, peak_bytes=1000, flops=10, parameter_bytes=100)


def member(
    id: str,
    category: str = "",
    *,
    time: float = 1.0,
    quality: float | None = 1.0,
    peak: float = 1.0,
    changes: tuple[str, ...] = (),
    plans: bool = False,
    why_not: str = "",
) -> Member:
    """One of these cost ratios."""
    return Member(
        id,
        category or id,
        frozenset(changes),
        plans,
        Estimate(math.log(time)),
        None if quality is None else Estimate(math.log(quality)),
        Estimate(math.log(peak)),
        why_not=why_not,
    )


def test_what_gains_nothing_is_unknown_or_beaten_in_its_category_is_left_out_with_the_reason() -> None:
    kept, left_out = useful(
        [
            member("fast", "a", time=0.8),
            member("slower", "a", time=0.9),
            member("other", "b", time=0.9),
            member("small", "a", time=1.2, peak=0.5),
            member("idle", "c", time=0.99),
            member("better", "d", quality=0.9),
            member("unknown", "e", time=0.5, quality=None),
            member("ranks", "f", time=0.1, why_not="it needs ranks"),
            member("lossy", "g", time=0.5, quality=2.5),
        ]
    )
    assert [each.id for each in kept] == ["fast", "other", "small", "better"]
    assert left_out.keys() == {"slower", "idle", "unknown", "ranks", "lossy"}
    assert left_out["ranks"] == "it needs ranks" and left_out["slower"].startswith("fast, of its category")


def test_of_equals_in_a_category_exactly_one_is_kept() -> None:
    kept, _ = useful([member(name, "a", time=0.8) for name in ("z", "m", "b")])
    assert [each.id for each in kept] == ["b"]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (member("x", changes=("update",)), member("y", changes=("update", "model")), "each replace the update"),
        (member("x", plans=True), member("y", plans=True), "each schedule the passes"),
        (member("x", "large_batch"), member("y", "large_batch"), "both large batch"),
        (member("x", changes=("update",)), member("y", changes=("optimizer",)), ""),
        (member("x", plans=True), member("y", changes=("around_step",)), ""),
    ],
)
def test_members_exclude_each_other_by_the_contract(one: Member, other: Member, words: str) -> None:
    assert (words in conflict([one, other])) if words else conflict([one, other]) == ""


def test_all_stacks_without_a_conflict_are_there_once_and_what_changes_the_model_is_first() -> None:
    members = [member("a"), member("b", "a"), member("z", changes=("model",)), member("c"), member("d")]
    found = [frozenset(each.id for each in chosen) for chosen in stacks(members)]
    every = [frozenset(each) for count in range(1, MOST_MEMBERS + 1) for each in combinations("abzcd", count)]
    assert sorted(map(sorted, found)) == sorted(sorted(each) for each in every if not {"a", "b"} <= each)
    assert all(spelled(chosen).startswith("z") for chosen in stacks(members) if any(each.id == "z" for each in chosen))


def test_gains_multiply_and_variances_add() -> None:
    both = together([Estimate(math.log(0.5), 0.03), Estimate(math.log(0.8), 0.04)])
    assert (math.exp(both.log), both.error) == pytest.approx((0.4, 0.05))


def test_those_that_are_expected_to_fit_come_first_then_those_that_lack_least() -> None:
    quick, small = member("quick", time=0.5), member("small", time=2.0, peak=0.4)
    order = [spelled(each) for each in by_promise("time", stacks([quick, small]), math.log(0.5))]
    assert order == ["quick+small", "small", "quick"]
    assert next(spelled(each) for each in by_promise("time", stacks([quick, small]), 0.0)) == "quick"


def test_a_shortlist_has_the_best_of_each_kind_and_few_of_a_category() -> None:
    many = [member(f"t{number}", "time", time=0.5 + number / 100) for number in range(9)]
    few = shortlist("time", [*many, member("bytes", time=3.0, peak=0.1), member("good", quality=0.7)], 4)
    assert {each.id for each in few} == {"t0", "t1", "bytes", "good"}
    assert sum(each.category == "time" for each in few) == A_CATEGORY


def of(name: str, peak: int, time: float = 1.0, quality: float = 1.0, error: float = 0.0) -> Candidate:
    cost = StepCost(stack=name, peak_bytes=peak)
    return Candidate(name, cost, Estimate(math.log(time)), Estimate(math.log(quality), error))


@pytest.mark.parametrize(
    ("goal", "order"),
    [
        ("time", ["quick", "careful", "tiny", BASELINE]),
        ("memory", ["careful", "quick", BASELINE, "tiny"]),  # tiny's quality is worth less than the goal gives up
        ("quality", ["careful", BASELINE, "quick", "tiny"]),
    ],
)
def test_each_goal_has_its_order_and_what_cannot_fit_is_apart(goal: Goal, order: list[str]) -> None:
    known = [
        Candidate(BASELINE, PLAIN),
        of("quick", 900, time=0.5, quality=1.05),
        of("tiny", 100, 0.6, 1.01 / KEEPS),
        of("careful", 800, 0.8, 0.85),
        of("huge", 1001, 0.1, 0.1),
        of("vast", 3000),
        Candidate("odd", StepCost(stack="odd", why_not="it does not attach")),
    ]
    ranking = ranked(goal, known, PLAIN, 1000)
    assert [each.stack for each in ranking.fitting] == order
    assert [each.stack for each in ranking.too_large] == ["huge", "vast"]
    assert [each.stack for each in ranking.uncounted] == ["odd"] and ranking.least_bytes == 100


def test_a_quality_of_which_little_is_known_is_taken_at_its_worse_end() -> None:
    known = [of("known", 10, quality=0.95, error=0.01), of("perhaps", 10, quality=0.9, error=0.2)]
    assert [each.stack for each in ranked("quality", known, PLAIN, 1000).fitting] == ["known", "perhaps"]


def test_counts_at_the_users_size_take_the_place_of_records() -> None:
    before = member("x", time=0.9, peak=0.2)
    own = StepCost(stack="x", peak_bytes=500, step_s=0.6, step_band=0.2)
    after = counted(before, own, PLAIN.model_copy(update={"step_s": 1.2}))
    assert after.peak and after.time and (math.exp(after.peak.log), after.peak.error) == (0.5, 0.0)
    assert (math.exp(after.time.log), after.time.source) == (0.5, "modelled")
    assert counted(before, own, PLAIN).time == before.time  # no GPU was named
    assert counted(before, StepCost(stack="x", why_not="no"), PLAIN).why_not == "no"


def test_a_modelled_step_counts_by_progress() -> None:
    """Half as many steps at the same time each are half of the training."""
    half = Member("x", "x", time=Estimate(0.0), quality=Estimate(0.0), progress=math.log(0.5))
    own = StepCost(stack="x", peak_bytes=500, step_s=1.2)
    assert math.exp(candidate((half,), own, PLAIN.model_copy(update={"step_s": 1.2})).time.log) == pytest.approx(0.5)


def test_where_no_time_is_known_a_training_is_expected_to_take_as_long_as_its_flops() -> None:
    timeless = Member("x", "x", quality=Estimate(0.0), progress=math.log(0.5))
    own = StepCost(stack="x", peak_bytes=500, flops=60)
    for time in (candidate((timeless,), own, PLAIN).time, counted(timeless, own, PLAIN).time):
        assert time and math.exp(time.log) == pytest.approx(3) and time.source == BY_FLOPS
    both = candidate((timeless, member("y", time=0.9)), own, PLAIN)
    assert both.time.source == BY_FLOPS


def trial(name: str, time: float, quality: float | None = None, loss: float = 1.0, failure: str = "") -> Trial:
    known = None if quality is None else Estimate(math.log(quality), math.inf)
    return Trial(name, Estimate(math.log(time), math.inf), known, Estimate(math.log(loss)), 0.0, failure)


def test_a_rung_keeps_the_best_and_no_failure() -> None:
    ran = [
        trial("a", 0.9, 1.0),
        trial("b", 0.5, 2.5),
        trial("c", 0.8, 1.0),
        trial("d", 0.1, 0.1, failure="diverged: nan"),
    ]
    assert halved("time", ran, 2) == ["c", "a"] and halved("quality", ran, 9) == ["c", "a", "b"]


def test_without_a_scaling_curve_a_worse_loss_gives_up_quality() -> None:
    ran = [trial("quick", 0.5, loss=1.05), trial("even", 0.9, loss=1.0), trial("deep", 2.0, loss=0.9)]
    assert halved("time", ran, 3) == ["even", "deep", "quick"]
    assert halved("quality", ran, 3) == ["deep", "even", "quick"]


@pytest.mark.parametrize(("finalists", "left"), [(6, [3, 2]), (5, [3, 2]), (3, [2]), (2, []), (1, [])])
def test_rungs_halve_down_to_two(finalists: int, left: list[int]) -> None:
    assert rungs(finalists) == left


def test_a_stack_without_each_of_its_members() -> None:
    assert without_each("a+b:x=1+c") == {"a": "b:x=1+c", "b": "a+c", "c": "a+b:x=1"}
    assert without_each("a") == {"a": BASELINE} and without_each(BASELINE) == {}


def test_a_contribution_is_paired_by_replicate() -> None:
    """What all of a replicate share, such as a slow machine, cancels."""
    best, other = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.5, 1: 2.5, 2: 3.5, 9: 0.0}
    found = paired(best, other, "measured")
    assert found and (found.log, found.error) == (-0.5, 0.0)
    assert paired(best, {7: 1.0}, "measured") is None


@pytest.mark.parametrize("goal", GOALS)
def test_an_order_does_not_depend_on_the_order_before(goal: Goal) -> None:
    known = [
        of(name, peak, time, quality)
        for name, peak, time, quality in [
            ("a", 5, 0.5, 1.1),
            ("b", 5, 0.5, 1.1),
            ("c", 4, 0.7, 0.9),
            ("d", 9, 0.6, 1.0),
        ]
    ]
    forward, back = (ranked(goal, each, PLAIN, 100).fitting for each in (known, known[::-1]))
    assert forward == back
