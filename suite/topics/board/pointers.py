"""Says above the matrix what a line of it cannot say: which claims failed near their papers' setting, what helps
together.

A sentence each, with links into the sections that have the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.entries.card import Property
from suite.judge.claims import Judgement
from suite.judge.verdicts import CONTRADICTED, REPRODUCED
from suite.record.text import in_html
from suite.show.pages.board import leaning
from suite.show.pages.markup import code, link
from suite.show.pages.matrix import surely
from suite.topics.stacks.stacks_on_board import Stacks

MOST = 8  # names in a sentence


def pointers(judgements: Sequence[Judgement], of_stacks: Sequence[Stacks], anchors: Mapping[str, str]) -> str:
    """Writes the sentences. ``anchors``: of the techniques' sections, by stack."""
    said = [f"<li>{sentence}</li>" for sentence in (_near(judgements, anchors), _together(of_stacks)) if sentence]
    return f'<ul class="pointers">{"".join(said)}</ul>' if said else ""


def _near(judgements: Sequence[Judgement], anchors: Mapping[str, str]) -> str:
    claims = [judgement for judgement in judgements if not isinstance(judgement.claim, Property)]
    if not claims:
        return ""
    words = [judgement.word for judgement in claims]
    held, failed = words.count(REPRODUCED), [judgement for judgement in claims if judgement.word == CONTRADICTED]
    names = dict.fromkeys((judgement.technique, f"{judgement.technique}.{judgement.claim.id}") for judgement in failed)
    listed = ", ".join(
        link(anchors[technique], code(name)) if technique in anchors else code(name)
        for technique, name in [*names][:MOST]
    )
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    tally = link("claims", f"{held} verdicts reproduced, {len(failed) or 'none'} contradicted")
    named = f": {listed}{more}" if names else ""
    return f"Near the papers' settings: {tally}{named}. Everything else is far from them, and says so."


def _together(of_stacks: Sequence[Stacks]) -> str:
    every = [interaction for of_board in of_stacks for interaction in of_board.interactions]
    if not every:
        return f"Together: no stack was measured beside its parts yet; {code('leantrain stack A+B')} does."
    stacks = len({interaction.whole.stack for interaction in every})
    measured = f"{stacks} stacks measured beside their parts" if stacks > 1 else "1 stack measured beside its parts"
    sooner = [interaction.whole.stack for interaction in every if surely(interaction.whole) > 0]
    gaining = [
        interaction.whole.stack
        for interaction in every
        if any(value.kind == "measured" and leaning(value) > 0 for value in interaction.values.values())
    ]
    return (
        f"Together: {link('stacks', in_html(measured))}; sooner than the reference: {_named(sooner)}; more together "
        f"than their gains multiply to: {_named(gaining)}."
    )


def _named(stacks: Sequence[str]) -> str:
    """Writes names as in ``a+b, a+c and 3 more``; none of them surely."""
    names = [*dict.fromkeys(stacks)]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(map(code, names[:MOST]))}{more}" if names else "none surely"
