"""What is measured next: the least known first, nothing twice, nothing that only looks known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.entries.catalogue import UnknownId
from suite.entries.sources import code_of
from suite.judge.evidence import TRIES
from suite.judge.ruler import BUDGETS, steps_at
from suite.judge.tuning import RATES, SEEDS
from suite.measure.missing import CampaignPlan, Pair, Wanted, pair_of, pairs_of, ruler_jobs
from suite.measure.provenance import conditions_of
from suite.record.job import Job, Setting
from suite.record.machine import fingerprint
from suite.record.numerics import off_the_clock
from suite.record.schema import ENVIRONMENT, FIFTHS, Code, Counted, Evaluation, Learned, Line, Status, Timed
from suite.record.store import Records
from tests import factories

GPT = Setting(baseline="gpt", size="pico", steps=20)
LION = Pair(GPT, "lion")
HERE = {"machine": fingerprint("cpu", 1), "conditions": conditions_of(GPT), "numerics": off_the_clock()}
OLD = Code(trajectory="o" * 32, counts="o" * 32)


def counted(stack: str, **changes: Any) -> Counted:
    return factories.counted(stack, **{**HERE, "code": code_of(GPT, stack)} | changes)


def learned(stack: str, seed: int = 0, **changes: Any) -> Learned:
    return factories.learned(stack, seed, **{**HERE, "code": code_of(GPT, stack)} | changes)


def timed(*stacks: str, replicate: int = 0, code: Code | None = None, windows: int = 1, **changes: Any) -> Timed:
    sides = [factories.side(stack, code=code or code_of(GPT, stack), windows=windows) for stack in stacks]
    return factories.timed(sides, replicate, **HERE | changes)


def plan(*lines: Line, pairs: Sequence[Pair] = (LION,), together: bool = False, **wanted: Any) -> CampaignPlan:
    return CampaignPlan(pairs, Records.of(lines), Wanted(**wanted, tuned=False), together)


# pairs ----------------------------------------------------------------------------------------------------------------


def test_pairs_are_those_that_all_cards_name() -> None:
    like = Setting(baseline="", steps=7)
    pairs = pairs_of(["lion"], ["gpt", "vit"], ["modern", "classic"], like)
    assert [(pair.setting.recipe, pair.setting.baseline) for pair in pairs] == [
        ("modern", "gpt"),
        ("modern", "vit"),
        ("classic", "gpt"),
        ("classic", "vit"),
    ]
    assert {(pair.reference, pair.setting.task, pair.setting.steps) for pair in pairs} == {("baseline", "pretrain", 7)}
    (lora,) = pairs_of(["lion + lora:rank=2"], ["gpt"], ["modern"], like)
    assert (lora.stack, lora.setting.task) == ("lion+lora:rank=2", "adapt")
    with pytest.raises(UnknownId):
        pairs_of(["lionn"], ["gpt"], ["modern"], like)


def test_what_a_card_does_not_name_is_refused_but_on_a_model_of_the_users_own() -> None:
    words = r"progressive_patch is not for gpt: its card names vit\. Choose of these with -b, or .*--model"
    refused: list[tuple[str, str | None]] = [
        ("progressive_patch", None),
        ("lion+progressive_patch", None),
        ("lion", "progressive_patch"),
    ]
    for stack, against in refused:
        with pytest.raises(ValueError, match=words):
            pair_of(GPT, stack, against)
    own = GPT.but(model="folder/of/a/model")
    assert pair_of(own, "progressive_patch") == Pair(own, "progressive_patch")
    assert pair_of(GPT, "lion", "adamw") == Pair(GPT, "lion", "adamw")


def test_every_technique_comes_before_any_comes_twice_and_the_first_recipe_before_the_others() -> None:
    stacks, recipes = ["lion", "vit_sam", "lamb"], ("modern", "classic")
    pairs = pairs_of(stacks, ["gpt", "vit"], recipes, Setting(baseline=""))  # type: ignore[arg-type]
    assert [(pair.stack, pair.setting.baseline) for pair in pairs[:5]] == [
        ("lion", "gpt"),
        ("vit_sam", "vit"),
        ("lamb", "gpt"),
        ("lion", "vit"),
        ("lamb", "vit"),
    ]
    order = [pair.setting.recipe for pair in pairs]
    assert order == sorted(order, key=recipes.index)


def test_all_pairs_are_timed_once_before_any_is_timed_twice() -> None:
    pairs = [LION, Pair(GPT, "lamb")]
    assert [(each.stacks, each.replicate) for each in plan(pairs=pairs, timings=2).timings()] == [
        (("baseline", stack), replicate) for replicate in (0, 1) for stack in ("lion", "lamb")
    ]
    (together,) = plan(pairs=pairs, timings=1, together=True).timings()
    assert together.stacks == ("baseline", "lion", "lamb")


# what is known --------------------------------------------------------------------------------------------------------


def test_what_is_known_is_not_asked_for_and_a_failure_is_known() -> None:
    for status in ("ok", "diverged"):
        known = plan(
            counted("baseline"),
            counted("lion", status=status),
            learned("baseline"),
            learned("lion", status=status),
            timed("baseline", "lion"),
            seeds=2,
            timings=2,
        )
        assert known.counts() == []
        assert known.jobs() == [Job(setting=GPT, stack=stack, seed=1) for stack in LION.sides]
        assert [each.replicate for each in known.timings()] == [1]


def test_nothing_is_learned_for_the_sake_of_a_stack_that_does_not_run() -> None:
    ill: dict[str, Any] = {"status": "failed", "reason": "ValueError: no such combination"}
    counts = counted("baseline"), counted("lion", **ill)
    trial, *others = plan(*counts, seeds=1).jobs() + plan(*counts, learned("lion", **ill), seeds=1).jobs()
    assert (trial, others) == (Job(setting=GPT, stack="lion"), [])
    assert Job(setting=GPT) in plan(*counts, learned("lion"), seeds=1).jobs(), "it was only not counted"
    assert Job(setting=GPT) in plan(*counts, pairs=(LION, replace(LION, stack="sam")), seeds=1).jobs(), "another's"


@pytest.mark.parametrize(
    "changes",
    [
        {"code": OLD},
        *(
            {"conditions": conditions_of(GPT).model_copy(update={name: value})}
            for name, value in (
                ("steps", 9),
                ("size", "micro"),
                ("recipe", "classic"),
                ("task", "adapt"),
                ("threads", 2),
                ("data_sha256", "0" * 64),
                ("model", "other"),
                ("baseline_version", 99),
                ("baseline", "vit"),
            )
        ),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_evidence_that_only_looks_alike_is_not_known(changes: dict[str, Any]) -> None:
    known = plan(
        counted("lion", **changes),
        counted("baseline"),
        learned("lion", **changes),
        learned("baseline"),
        timed("baseline", "lion", **changes),
        seeds=1,
        timings=1,
    )
    assert known.counts() == [(GPT, "lion")]
    assert known.jobs() == [Job(setting=GPT, stack="lion")]
    assert len(known.timings()) == 1
    assert known.learned_pairs(LION) == []


def test_a_claim_about_a_ratio_of_probes_asks_for_the_technique_at_zero_strength() -> None:
    vit = GPT.but(baseline="vit")
    jobs = plan(pairs=[Pair(vit, "vit_sam"), Pair(vit, "vit_sam:rho=0.1"), Pair(vit, "sam")], seeds=2).jobs()
    assert [job.seed for job in jobs if job.stack == "vit_sam:rho=0.0"] == [0, 1]
    assert len(jobs) == 2 * 5
    tuned = CampaignPlan([Pair(vit, "vit_sam")], Records.of([]), Wanted(seeds=2))
    assert not [job for job in tuned.jobs() if job.stack == "vit_sam:rho=0.0"], "before the reference's grid has chosen"


def test_other_stacks_do_not_stand_in() -> None:
    others = plan(timed("baseline", "lion:beta1=0.8"), timed("adamw", "lion"))
    assert len(others.timings()) == 3
    assert len(plan(timed("baseline", "lamb", "lion")).timings()) == 2, "another contender beside it changes nothing"


@pytest.mark.parametrize(
    ("changes", "seeds"),
    [
        ({"trajectory_sha256": "baseline 0 2.0"}, []),
        ({}, [1, 2]),
        ({"trajectory_sha256": "baseline 0 2.0", "final": 2.1}, [1, 2]),
        ({"trajectory_sha256": "baseline 0 2.0", "probes": {"lion.share": 1.0}}, [1, 2]),
        ({"trajectory_sha256": "baseline 0 2.0", "code": OLD}, [0, 1, 2]),
    ],
    ids=["equal", "another trajectory", "another end", "measures something", "other code"],
)
def test_where_a_seed_is_the_reference_s_to_the_bit_so_are_the_others(
    changes: dict[str, Any], seeds: list[int]
) -> None:
    runs = [*(learned("baseline", seed) for seed in range(3)), learned("lion", **changes)]
    asked = [job.seed for job in plan(*runs, seeds=3).jobs()]
    assert asked == seeds
    known = plan(*runs, seeds=3).learned_pairs(LION)
    assert [(ours.stack, ours.seed) for _, ours in known] == {
        0: [("lion", 0), ("baseline", 1), ("baseline", 2)],
        2: [("lion", 0)],
        3: [],
    }[len(asked)]


def test_seeds_that_equal_the_reference_s_travel() -> None:
    there = {"machine": factories.MACHINE.model_copy(update={"key": "e" * 16, "name": "elsewhere"})}
    runs = [*(learned("baseline", seed, **there) for seed in range(3))]
    assert not plan(*runs, learned("lion", trajectory_sha256="baseline 0 2.0", **there), seeds=3).jobs()
    assert len(plan(*runs, learned("lion", **there), seeds=3).jobs()) == 6


def test_counts_travel_and_times_do_not() -> None:
    there = factories.MACHINE
    known = plan(
        counted("lion", machine=there),
        counted("baseline", machine=there),
        timed("baseline", "lion", machine=there),
        timings=1,
    )
    assert known.counts() == []
    assert len(known.timings()) == 1
    assert len(plan(timed("baseline", "lion", protocol=0), timings=1).timings()) == 1, "of another protocol"


def test_pairs_of_runs_are_of_one_machine_the_own_one_where_it_has_as_many() -> None:
    there = [learned(stack, seed, machine=factories.MACHINE) for stack in LION.sides for seed in range(3)]
    here = [learned(stack, seed) for stack in LION.sides for seed in range(2)]
    assert {each.machine.key for pair in plan(*there, *here).learned_pairs(LION) for each in pair} == {
        factories.MACHINE.key
    }
    one_more = [learned(stack, 2) for stack in LION.sides]
    pairs = plan(*there, *here, *one_more).learned_pairs(LION)
    assert [(a.seed, b.seed) for a, b in pairs] == [(0, 0), (1, 1), (2, 2)]
    assert {each.machine.key for pair in pairs for each in pair} == {fingerprint("cpu", 1).key}


# windows and curves ---------------------------------------------------------------------------------------------------


def test_a_run_whose_cost_changes_is_timed_in_each_fifth_if_it_is_long_enough() -> None:
    points = [factories.counters(flops=number) for number in (1, 2)]
    (timing,) = plan(counted("lion", points=points), timings=1).timings()
    assert timing.windows == FIFTHS
    (timing,) = plan(counted("lion"), timings=1).timings()
    assert timing.windows == 1
    early, whole = (timed("baseline", "lion", windows=windows) for windows in (1, FIFTHS))
    assert plan(counted("lion", points=points), early, timings=1).timings(), "of the beginning alone"
    assert not plan(counted("lion", points=points), whole, timings=1).timings()
    assert not plan(counted("lion"), early, timings=1).timings()
    short = GPT.but(steps=10)
    few = counted("lion", points=points, conditions=conditions_of(short))
    (timing,) = plan(few, pairs=[Pair(short, "lion")], timings=1).timings()
    assert timing.windows == 1


def test_the_reference_s_curve_is_learned_at_all_budgets_with_its_own_run_among_them() -> None:
    jobs = ruler_jobs(GPT, 1)
    assert [job.setting.steps for job in jobs] == [steps_at(share, 20) for share in BUDGETS]
    assert Job(setting=GPT, seed=1) in jobs
    asked = plan(seeds=1, ruler_seeds=2).jobs()
    assert len(asked) == len(set(asked)) == 2 * len(BUDGETS) + 1
    assert asked[:2] == [Job(setting=GPT), Job(setting=GPT, stack="lion")]


# failures that may pass -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "passes"),
    [
        ("out_of_memory", "", True),
        ("hung", "", True),
        ("crashed", "", True),
        ("timeout", "", True),
        ("failed", f"{ENVIRONMENT}OSError: [Errno 28] No space left on device", True),
        ("failed", "KeyError: 'x'", False),
        ("diverged", "", False),
        ("unavailable", "needs 8 GPUs", False),
    ],
)
def test_a_failure_that_may_pass_is_tried_again_and_not_forever(status: Status, reason: str, passes: bool) -> None:
    ill: dict[str, Any] = {"status": status, "reason": reason}
    broken = factories.side("lion", code=code_of(GPT, "lion"), **ill)
    known: list[Line] = [counted("baseline"), learned("baseline"), counted("lion", **ill), learned("lion", **ill)]
    known.append(factories.timed([factories.side(code=code_of(GPT, "baseline")), broken], 0, **HERE))

    def missing(lines: Sequence[Line]) -> tuple[int, int, int]:
        again = CampaignPlan([LION], Records.of(lines), Wanted(1, 1, tuned=False))
        return len(again.counts()), len(again.jobs()), len(again.timings())

    assert missing(known) == ((1, 1, 1) if passes else (0, 0, 0))
    tries = [each.model_copy(update={"id": f"{number}{each.id}"}) for number in range(TRIES) for each in known]
    assert missing(tries) == (0, 0, 0)


def test_the_curve_of_a_tuned_pair_is_at_the_reference_s_tuned_rate() -> None:
    grid = [
        learned(
            stack,
            seed=seed,
            conditions=conditions_of(GPT.but(rate=rate)),
            curve=[Evaluation(step=0, loss=4.0), Evaluation(step=20, loss=2.0 + abs(math.log(rate / 3)))],
        )
        for stack in ("baseline", "lion")
        for rate in RATES
        for seed in SEEDS
    ]
    asked = Wanted(seeds=1, ruler_seeds=1)
    first = CampaignPlan([LION], Records.of([]), asked).jobs()
    assert {job.setting.steps for job in first} == {GPT.steps}, "its grid comes first"
    rulers = CampaignPlan([LION], Records.of(grid), asked).jobs()
    assert {(job.setting.rate, job.stack) for job in rulers} == {(3.0, "baseline")}
    assert len(rulers) == len(BUDGETS) - 1, "its own budget is in the grid"
