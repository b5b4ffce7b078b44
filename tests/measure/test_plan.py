"""What is measured next: the least known first, nothing twice, nothing that only looks known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.contract.baseline import baseline_hashes, baselines
from suite.contract.catalogue import UnknownId
from suite.contract.sources import harness_sha256, sources_of
from suite.measure.plan import GROUP, Pair, next_group, pairs_of, remaining, seeds_done
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import Outcome, Record
from tests import factories

PAIRS = st.builds(
    Pair,
    setting=st.builds(Setting, baseline=st.sampled_from(["gpt", "vit"]), recipe=st.sampled_from(["classic", "modern"])),
    stack=st.sampled_from("abcdefgh"),
    reference=st.sampled_from(["baseline", "dp_ddp"]),
)
KNOWN = st.dictionaries(PAIRS, st.sets(st.integers(0, 5), max_size=4), min_size=1, max_size=12)


@given(KNOWN, st.integers(1, 4))
def test_every_pair_gets_its_seeds_and_none_twice(done: dict[Pair, set[int]], seeds: int) -> None:
    wanted = dict.fromkeys(done, seeds)
    while group := next_group(done, wanted):
        seed, together = group
        fewest = min(len(known) for known in done.values())
        left = remaining(done, wanted)
        assert 1 <= len(together) <= GROUP
        assert len({(pair.setting, pair.reference) for pair in together}) == 1
        assert all(len(done[pair]) == fewest and seed not in done[pair] for pair in together)
        for pair in together:
            done[pair].add(seed)
        assert remaining(done, wanted) < left
    assert all(len(known) >= seeds for known in done.values())
    assert remaining(done, wanted) == 0


def test_a_short_plan_sees_every_technique_before_any_twice_and_the_first_recipe_before_the_others() -> None:
    stacks, recipes = [f"t{number}" for number in range(4 * GROUP)], ("modern", "classic")
    pairs = [
        Pair(Setting(baseline=baseline, recipe=recipe), stack)  # type: ignore[arg-type]
        for stack in stacks for baseline in ("gpt", "vit") for recipe in recipes
    ]  # fmt: skip
    done: dict[Pair, set[int]] = {pair: set() for pair in pairs}
    seen: list[Pair] = []
    while group := next_group(done, dict.fromkeys(pairs, 1)):
        seed, together = group
        seen += together
        for pair in together:
            done[pair].add(seed)
    assert {pair.stack for pair in seen[: len(stacks)]} == set(stacks)
    assert {pair.setting.baseline for pair in seen[: len(stacks)]} == {"gpt", "vit"}
    order = [pair.setting.recipe for pair in seen]
    assert order == sorted(order, key=recipes.index)


def test_pairs_are_those_that_all_cards_name() -> None:
    like = Setting(baseline="", steps=7)
    pairs = pairs_of(["lion"], ["gpt", "vit"], ["modern", "classic"], like)
    assert [(pair.setting.baseline, pair.setting.recipe) for pair in pairs] == [
        ("gpt", "modern"), ("gpt", "classic"), ("vit", "modern"), ("vit", "classic"),
    ]  # fmt: skip
    assert {(pair.reference, pair.setting.task, pair.setting.steps) for pair in pairs} == {("baseline", "pretrain", 7)}
    (lora,) = pairs_of(["lion + lora:rank=2"], ["gpt"], ["modern"], like)
    assert (lora.stack, lora.setting.task) == ("lion+lora:rank=2", "adapt")
    with pytest.raises(UnknownId):
        pairs_of(["lionn"], ["gpt"], ["modern"], like)


LION = Pair(Setting(baseline="gpt", steps=8), "lion")


def stored(**changes: object) -> Record:
    """A current record of LION, seed 0, but for the changes."""
    gpt = baselines()["gpt"]
    data = gpt.data("nano", "pretrain")
    values = {
        "conditions": factories.conditions(
            baseline_version=gpt.version, steps=8, threads=1, data=data.name, data_sha256=data.sha256
        ),
        "machine": fingerprint("cpu", 1),
        "harness_sha256": harness_sha256(),
        "baseline_sha256": baseline_hashes()["gpt"],
    }
    contenders = changes.pop(
        "contenders", [Outcome(stack="baseline"), Outcome(stack="lion", sources=sources_of("lion"))]
    )
    return factories.record(contenders, **values | changes)  # type: ignore[arg-type]


def known(*records: Record, pair: Pair = LION) -> set[int]:
    return seeds_done([pair], records)[pair]


def test_a_current_record_is_known_and_a_failure_is_a_result() -> None:
    assert known(stored()) == {0}
    assert known(stored(), stored(seed=2)) == {0, 2}
    failed = Outcome(stack="lion", status="out_of_memory", sources=sources_of("lion"))
    assert known(stored(contenders=[Outcome(stack="baseline"), failed])) == {0}


def test_nothing_got_as_far_as_its_data() -> None:
    without = stored().conditions.model_copy(update={"data": "", "data_sha256": ""})
    assert known(stored(conditions=without)) == {0}


def test_a_record_that_only_looks_alike_is_not_known() -> None:
    conditions = stored().conditions
    lion = Outcome(stack="lion", sources=sources_of("lion"))
    for changes in (
        {"machine": factories.MACHINE},
        {"harness_sha256": "0" * 64},
        {"baseline_sha256": "0" * 64},
        {"contenders": [Outcome(stack="baseline"), Outcome(stack="lion", sources={"lion": "0" * 64})]},
        {"contenders": [Outcome(stack="baseline"), Outcome(stack="lion:beta1=0.8", sources=sources_of("lion"))]},
        {"contenders": [Outcome(stack="adamw", sources=sources_of("adamw")), lion]},
        {"contenders": [Outcome(stack="baseline", sources={"old": "0" * 64}), lion]},
        *(
            {"conditions": conditions.model_copy(update={name: value})}
            for name, value in (
                ("steps", 9), ("size", "micro"), ("recipe", "classic"), ("task", "adapt"), ("threads", 2),
                ("data_sha256", "0" * 64), ("model", "other"), ("baseline_version", 99), ("baseline", "vit"),
            )
        ),
    ):  # fmt: skip
        assert known(stored(**changes)) == set(), changes


def test_a_reference_that_ran_is_no_comparison_of_it_with_itself() -> None:
    itself = Pair(LION.setting, "baseline")
    assert known(stored(), pair=itself) == set()
    assert known(stored(contenders=[Outcome(stack="baseline")] * 2), pair=itself) == {0}
