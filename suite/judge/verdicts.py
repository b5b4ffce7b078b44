"""Has the words of every verdict: on a paper's claim, and on a change between two states of the code.

A verdict on a claim has two fields. The *outcome* says what the evidence shows of the claim's predicate; the *distance*
(:mod:`suite.judge.distance`) says how far the evidence lies from where the paper saw it. Both together give a word:

    outcome         near           far, at size nano
    holds           reproduced     holds at nano
    does not hold   contradicted   not seen at nano

A statement that nobody has read in the paper gets neither: its outcome is shown, and not judged. So a claim is *read*
first, then *judged*, where evidence stands against its predicate, and then *decided*, where that holds or does not.
"""

from __future__ import annotations

from typing import Literal, get_args

Outcome = Literal["holds", "does not hold", "undecided", "not exercised", "tuning open"]
Unjudged = Literal["not measured", "modelled", "quoted"]
"""Where no evidence stands against the predicate."""

OUTCOMES: tuple[Outcome | Unjudged, ...] = (*get_args(Outcome), *get_args(Unjudged))
HOLDS: Outcome = "holds"
FAILS: Outcome = "does not hold"
NOT_EXERCISED: Literal["not exercised"] = "not exercised"
REPRODUCED, CONTRADICTED, UNREAD = "reproduced", "contradicted", "statement not read"
NEAR_WORDS = {HOLDS: REPRODUCED, FAILS: CONTRADICTED}
FAR_WORDS = {HOLDS: "holds at", FAILS: "not seen at"}
FIRST = (CONTRADICTED, REPRODUCED, *FAR_WORDS.values())


def word(outcome: Outcome | Unjudged, near: bool, read: bool, size: str) -> str:
    """Tells what is said of a claim. ``read``: whether somebody read the statement in the paper; ``size``: of the
    evidence's model, by name."""
    if outcome in get_args(Unjudged):
        return outcome
    if not read:
        return UNREAD
    if outcome not in NEAR_WORDS:
        return outcome
    return NEAR_WORDS[outcome] if near else f"{FAR_WORDS[outcome]} {size}"


def rank(said: str) -> tuple[int, str]:
    """Returns the order in which reports count the words on claims: what is near first, what is not judged last."""
    order = (*FIRST, *OUTCOMES[2:5], UNREAD, *get_args(Unjudged))
    return next((place for place, start in enumerate(order) if said.startswith(start)), len(order)), said


ChangeVerdict = Literal[
    "equal",
    "equivalent",
    "improved",
    "changed",
    "regressed",
    "new",
    "gone",
    "failed",
    "not comparable",
    "inconclusive",
    "unfit",
    "not checked",
]
"""``equal``: to the bit. ``equivalent``: as near as noise allows. ``changed``: different, and neither better nor worse.
``unfit``: this machine must not judge. ``not checked``: nobody asked, or nothing can tell."""
