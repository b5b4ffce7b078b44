"""The controls and variants that claims name: what a campaign learns besides, and that it can."""

from __future__ import annotations

import pytest

from suite.entries.card import Card, Claim
from suite.entries.catalogue import catalogue, reference_of
from suite.entries.spelling import build
from suite.judge.claims import control_of, stack_of
from suite.measure.controls import control_pairs
from suite.measure.missing import CampaignPlan, Pair, Wanted, pairs_of
from suite.record.job import Setting, Spelling
from suite.record.store import Records

GPT = Setting(baseline="gpt")
NAMED = [
    pytest.param(entry.card, claim, id=f"{entry.id}.{claim.id}")
    for entry in catalogue().values()
    for claim in entry.card.judged
    if claim.against or claim.within
]


def named(*techniques: str, baseline: str = "gpt") -> dict[str, bool]:
    pairs = pairs_of(techniques, [baseline], ["modern"], GPT)
    return {each.stack: each.timed for each in control_pairs(pairs)}


def test_a_technique_brings_its_controls_which_are_not_timed() -> None:
    controls = {"lth_imp:control=reinitialised": False, "lth_imp:control=shuffled": False}
    assert named("lth_imp") == controls
    assert named("lth_imp", *controls) == {}  # those that are asked for are measured as all others
    assert named("lth_imp:rounds=2") == {}  # of other settings nobody claims anything


def test_a_variant_whose_time_is_claimed_is_timed() -> None:
    assert named("is_gradnorm") == {"is_gradnorm:threshold=0.0": True}
    assert named("svite", baseline="vit") == {"svite:structured=true": False}


def test_what_is_timed_beside_its_control_is_one_pair() -> None:
    at = GPT.but(size="base", recipe="classic", device="cuda")
    (pair,) = control_pairs(pairs_of(["flashattention"], ["gpt"], ["classic"], at))
    assert pair == Pair(at, "amp_fp16+flashattention", "amp_fp16")
    assert not control_pairs(pairs_of(["flashattention"], ["gpt"], ["classic"], GPT))


def test_the_plan_learns_and_counts_a_control_and_times_the_rest() -> None:
    pairs = [Pair(GPT, "lion"), Pair(GPT, "lion:beta1=0.8", timed=False)]
    plan = CampaignPlan(pairs, Records.of([]), Wanted(seeds=1, timings=2, tuned=False))
    stacks = {"baseline", "lion", "lion:beta1=0.8"}
    assert {job.stack for job in plan.jobs()} == stacks == {stack for _, stack in plan.counts()}
    assert [each.stacks for each in plan.timings()] == [("baseline", "lion")] * 2


@pytest.mark.parametrize(("card", "claim"), NAMED)
def test_both_sides_can_be_made_wherever_the_claim_is_judged(card: Card, claim: Claim) -> None:
    for side in (stack_of(card, claim), control_of(claim)):
        assert reference_of(side) == (card.reference, card.task)
        assert build(side)
        for technique in Spelling(side).names:
            assert {*(claim.baselines or card.baselines)} <= {*catalogue()[technique].card.baselines}
