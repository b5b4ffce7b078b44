"""Says above the matrix what a line of it cannot say: which claims failed near their papers' setting, what helps
together.

A sentence each, with links into the sections that have the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from suite.entries.card import Property
from suite.judge.claims import Judgement
from suite.judge.verdicts import CONTRADICTED, REPRODUCED
from suite.show.pages.board import leaning
from suite.show.pages.matrix import surely
from suite.topics.board.drawn import macros
from suite.topics.stacks.stacks_on_board import Stacks

DRAWN = macros("pointers")
MOST = 8  # names in a sentence
Names = tuple[list[tuple[str, str]], int]  # each with an anchor, and how many more there are


def pointers(judgements: Sequence[Judgement], of_stacks: Sequence[Stacks], anchors: Mapping[str, str]) -> Markup:
    """Writes the sentences. ``anchors``: of the techniques' sections, by stack."""
    said = [sentence for sentence in (_near(judgements, anchors), _together(of_stacks)) if sentence]
    return DRAWN.pointers(said) if said else Markup()


def _near(judgements: Sequence[Judgement], anchors: Mapping[str, str]) -> Markup:
    claims = [judgement for judgement in judgements if not isinstance(judgement.claim, Property)]
    if not claims:
        return Markup()
    words = [judgement.word for judgement in claims]
    held, failed = words.count(REPRODUCED), [judgement for judgement in claims if judgement.word == CONTRADICTED]
    names = [(anchors.get(each.technique, ""), f"{each.technique}.{each.claim.id}") for each in failed]
    return DRAWN.near(held, len(failed), _first(names))


def _together(of_stacks: Sequence[Stacks]) -> Markup:
    every = [interaction for of_board in of_stacks for interaction in of_board.interactions]
    if not every:
        return DRAWN.alone()
    stacks = len({interaction.whole.stack for interaction in every})
    measured = f"{stacks} stacks measured beside their parts" if stacks > 1 else "1 stack measured beside its parts"
    sooner = [("", interaction.whole.stack) for interaction in every if surely(interaction.whole) > 0]
    gaining = [
        ("", interaction.whole.stack)
        for interaction in every
        if any(value.kind == "measured" and leaning(value) > 0 for value in interaction.values.values())
    ]
    return DRAWN.together(measured, _first(sooner), _first(gaining))


def _first(names: Iterable[tuple[str, str]]) -> Names:
    """Returns the first names, and how many more there are."""
    distinct = [*dict.fromkeys(names)]
    return distinct[:MOST], max(0, len(distinct) - MOST)
