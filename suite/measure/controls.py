"""Finds what claims compare besides a technique and its reference: variants with other settings, and controls.

A control is the paper's own counter-experiment (a ticket with its weights drawn anew, as many examples at random), or
another technique of the same reference. Its claims are about what was learned, so that it is learned and counted and,
unlike the techniques, not timed; what a claim times is timed beside its control.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from suite.entries.card import Card, Claim, of_study
from suite.entries.catalogue import catalogue
from suite.judge.claims import control_of, is_exact, stack_of, unfit
from suite.judge.metrics import metric_of
from suite.measure.missing import Pair


def control_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Returns the pairs that claims of the techniques name, at the settings of their own pairs, and that are not among
    them."""
    originals = list(pairs)
    entries = catalogue()
    wanted: dict[Pair, bool] = {}
    for pair in originals:
        entry = entries.get(pair.stack)  # with its defaults: other settings are nobody's claims
        if entry is None or pair.reference != entry.card.reference:
            continue
        for claim in entry.card.claim:
            if _is_learned_or_timed(claim) and _fits(entry.card, claim, pair):
                for control, timed in _named(pair, entry.card, claim).items():
                    wanted[control] = wanted.get(control, False) or timed
    return [replace(other, timed=timed) for other, timed in wanted.items() if other not in originals]


def _is_learned_or_timed(claim: Claim) -> bool:
    """Tells whether the claim needs runs; others need none: they are counted by ``leantrain claims --exact``, quoted,
    or read off a study."""
    return not (is_exact(claim) or of_study(claim) or claim.kind in ("literature", "modelled"))


def _fits(card: Card, claim: Claim, pair: Pair) -> bool:
    at = pair.setting
    named = at.baseline in (claim.baselines or card.baselines)
    return named and at.task == card.task and not unfit(claim, at.recipe, at.size, at.device)


def _named(pair: Pair, card: Card, claim: Claim) -> dict[Pair, bool]:
    """Returns the claim's own stack and its control, each against the card's reference, or where times are compared one
    beside the other; and whether the claim is about times."""
    stack, control = stack_of(card, claim), control_of(claim)
    if stack == card.id and not control:
        return {}
    metric = metric_of(claim.metric)
    timed = metric is not None and metric.kind in ("timed", "measured", "composed")
    if control and timed:
        return {replace(pair, stack=stack, reference=control): True}
    others = [side for side in (stack, control) if side not in ("", card.id, card.reference)]
    return {replace(pair, stack=side): timed for side in others}
