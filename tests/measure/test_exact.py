"""Every exact claim of every card, counted now: the gate that needs no record, no clock and no statistics."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from suite.entries.card import Card, Claim, Property
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.judge.claims import EXACT_KINDS, Judgement, expectation, is_exact, shown
from suite.measure.exact import TRAINED, exact_verdicts
from suite.measure.mutants import mutants_of
from suite.record.job import Size
from tests.runs import home, unless


def of_sizes(card: Card, sizes: Collection[Size]) -> Card:
    """The card with the claims that can be judged at one of these sizes."""
    own = {claim.id for claim in card.judged if not claim.sizes or {*claim.sizes} & {*sizes}}
    return only(card, own)


def only(card: Card, ids: Collection[str]) -> Card:
    """The card with the claims and properties of these ids."""
    kept = {name: tuple(each for each in getattr(card, name) if each.id in ids) for name in ("claim", "properties")}
    return card.model_copy(update=kept)


CARDS = [of_sizes(entry.card, TRAINED) for entry in catalogue().values()]


def judged_on(card: Card) -> dict[str, set[str]]:
    """The exact claims that can be judged on each of a card's baselines."""
    exact = [claim for claim in card.judged if is_exact(claim)]
    where = {each.id: each.baselines or card.baselines for each in exact}
    on = {name: {id for id, names in where.items() if name in names} for name in card.baselines}
    return {name: claims for name, claims in on.items() if claims}


def in_every_run(card: Card) -> set[str]:
    """The baselines on which a run of the tests judges a card: its home, and others for what that cannot judge."""
    on = judged_on(card)
    chosen, open_ones = set[str](), set[str]().union(*on.values())
    for name in sorted(on, key=lambda name: (name != home(card), -len(on[name]))):
        if on[name] & open_ones:
            chosen.add(name)
            open_ones -= on[name]
    return chosen


CASES = [
    pytest.param(card, baseline, id=f"{card.id}-{baseline}", marks=unless(baseline in in_every_run(card)))
    for card in CARDS
    for baseline in judged_on(card)
]


@pytest.mark.parametrize(("card", "baseline"), CASES)
def test_exact_claims_hold(card: Card, baseline: str) -> None:
    """At pico; at nano where a claim's number depends on the depth or the width."""
    verdicts = judged(card, baseline, "pico")
    if any(each.outcome != "holds" for each in verdicts):
        verdicts = judged(card, baseline, "nano")
    assert_reproduced(verdicts)


def judged(card: Card, baseline: str, size: Size) -> list[Judgement]:
    """By the technique's defaults; a claim that they say nothing of, by the settings that its mutants need."""
    verdicts = exact_verdicts([card], (baseline,), size)
    settings = sorted({each.settings for each in mutants_of(catalogue()[card.id])} - {""})
    for other in settings:
        silent = {each.claim.id for each in verdicts if each.outcome == "not measured"}
        if not silent:
            break
        verdicts = [each for each in verdicts if each.claim.id not in silent]
        verdicts += exact_verdicts([only(card, silent)], (baseline,), size, other)
    return verdicts


def test_claims_are_counted_of_other_hyper_parameters_too() -> None:
    card = catalogue()["sam"].card
    verdicts = {each.claim.id: each for each in exact_verdicts([card], ("vit",), "pico", "adaptive=true,rho=2")}
    assert_reproduced(list(verdicts.values()))
    assert verdicts["radius"].command == "leantrain claims sam.radius:adaptive=true,rho=2 --exact -b vit --size pico"
    with pytest.raises(ValueError, match="no hyper-parameter 'rh'"):
        exact_verdicts([card], ("vit",), "pico", "rh=2")


@pytest.mark.slow
@pytest.mark.parametrize(("card", "baseline"), CASES)
def test_they_all_hold_at_nano(card: Card, baseline: str) -> None:
    assert_reproduced(judged(card, baseline, "nano"))


OF_LARGER_SIZES = [
    pytest.param(claim, entry.card, baseline, size, id=f"{entry.id}.{claim.id}-{baseline}-{size}")
    for entry in catalogue().values()
    for claim in entry.card.judged
    for baseline in claim.baselines or entry.card.baselines
    for size in claim.sizes
    if is_exact(claim) and not {*claim.sizes} & {*TRAINED}
]


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "card", "baseline", "size"), OF_LARGER_SIZES)
def test_those_of_a_papers_size_hold_there(claim: Claim, card: Card, baseline: str, size: Size) -> None:
    """Counted without values."""
    assert_reproduced(exact_verdicts([only(card, {claim.id})], (baseline,), size))


def assert_reproduced(verdicts: list[Judgement]) -> None:
    """Those that somebody read in the paper, and properties; every one is judged."""
    assert verdicts
    wrong = [
        f"{each.claim.id}: {expectation(each.claim)}, counted {shown(each)}"
        for each in verdicts
        if (each.claim.read or isinstance(each.claim, Property)) and each.outcome != "holds"
    ]
    assert not wrong
    assert {each.outcome for each in verdicts} <= {"holds", "does not hold"}, [each.reason for each in verdicts]


@pytest.mark.parametrize("card", [entry.card for entry in catalogue().values()], ids=lambda card: card.id)
def test_every_card_brings_claims_that_can_be_judged(card: Card) -> None:
    assert card.claim, "a technique without a claim of its paper cannot be judged"
    assert set(card.baselines) <= set(baselines())
    for claim in card.judged:
        assert is_exact(claim) or claim.kind not in EXACT_KINDS, f"{claim.id}: {claim.metric} is not exact"
