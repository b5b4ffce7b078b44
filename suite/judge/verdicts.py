"""The words of every verdict: on a paper's claim, and on a change between two states of the code."""

from __future__ import annotations

from typing import Literal, get_args

ClaimVerdict = Literal[
    "reproduced", "direction only", "not supported", "contradicted", "quality constraint violated", "inconclusive",
    "not testable here", "modelled", "quoted",
]  # fmt: skip
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
"""All verdicts on claims, in the order in which reports count them."""

ChangeVerdict = Literal[
    "equal", "equivalent", "improved", "changed", "regressed", "new", "gone", "failed", "not comparable",
    "inconclusive", "unfit", "not checked",
]  # fmt: skip
"""``equal``: to the bit. ``equivalent``: as near as noise allows. ``changed``: different, and neither better nor worse.
``unfit``: this machine must not judge. ``not checked``: nobody asked, or nothing can tell."""
