"""A claim's conditions are data: where they do not hold it is not testable, and never contradicted."""

from __future__ import annotations

from typing import Any

import pytest

from suite.entries.catalogue import catalogue, lookup
from suite.judge.claims import verdicts
from tests.factories import claim, row


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        ({"steps": 10_000}, "200 steps (claimed for 10000 or more)"),
        ({"batch_size": 4096}, "an unknown batch size (claimed for 4096 or more)"),
        ({"parameters": 10**8}, "262144 parameters (claimed for 100000000 or more)"),
        ({"tuned": True}, "learning rates that were not tuned"),
    ],
)
def test_where_its_conditions_do_not_hold_a_claim_is_not_testable(needs: dict[str, Any], why: str) -> None:
    slow = row("lion", pace_s=0.04)
    card = lookup("technique", "lion", catalogue()).card
    about = card.model_copy(update={"claim": (claim(needs=needs),), "properties": (), "baselines": ("gpt",)})
    (judgement,) = verdicts([slow], [about])
    assert judgement.verdict == "not testable here" and why in judgement.reason
    (judged,) = verdicts([slow], [about.model_copy(update={"claim": (claim(),), "properties": ()})])
    assert judged.verdict == "contradicted", "twice as slow where faster is claimed"
