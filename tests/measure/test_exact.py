"""Every exact claim of every card, counted now: the gate that needs no record, no clock and no statistics."""

from __future__ import annotations

import pytest

from suite.contract.baseline import baselines
from suite.contract.card import Card
from suite.contract.catalogue import catalogue
from suite.judge.claims import EXACT_KINDS, expectation, is_exact, shown
from suite.measure.exact import exact_verdicts

CARDS = [entry.card for entry in catalogue().values()]
CASES = [
    pytest.param(card, baseline, id=f"{card.id}-{baseline}")
    for card in CARDS
    for baseline in card.baselines
    if any(is_exact(claim) and baseline in (claim.baselines or card.baselines) for claim in card.claim)
]


@pytest.mark.parametrize(("card", "baseline"), CASES)
def test_exact_claims_hold(card: Card, baseline: str) -> None:
    found = exact_verdicts([card], (baseline,))
    assert found
    wrong = [
        f"{each.claim.id}: {expectation(each.claim)}, counted {shown(each)}"
        for each in found
        if each.claim.verified and each.verdict != "reproduced"
    ]
    assert not wrong
    assert {each.verdict for each in found} <= {"reproduced", "contradicted"}, [each.reason for each in found]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.id)
def test_every_card_brings_claims_that_can_be_judged(card: Card) -> None:
    assert card.claim, "a technique without a claim of its paper cannot be judged"
    assert set(card.baselines) <= set(baselines())
    for claim in card.claim:
        assert is_exact(claim) or claim.kind not in EXACT_KINDS, f"{claim.id}: {claim.metric} is not exact"
