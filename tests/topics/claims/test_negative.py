"""Negative results: what did not hold by an older version stays, with what the newer one says."""

from __future__ import annotations

from dataclasses import replace

from suite.entries.card import Card
from suite.topics.claims.claims_on_board import log_line
from suite.topics.claims.negative import negative_results
from tests.factories import claim, evidence
from tests.show.samples import shown


def test_what_did_not_hold_stays_as_a_dated_line_beside_what_came_later() -> None:
    (slow,), (fast,) = shown(evidence("fast", pace_s=0.04)), shown(evidence("fast", pace_s=0.01))
    older = replace(slow, newer_version=99, newest="2026-01-01T00:00:00+00:00")
    newer = replace(
        fast,
        conditions=fast.conditions.model_copy(update={"baseline_version": 99}),
        newest="2026-02-01T00:00:00+00:00",
    )
    own = claim(read="Table 1", setting={"architecture": "GPT-3", "device": "TPU"})
    paper = {"title": "T", "authors": "A", "venue": "V"}
    card = Card(
        id="fast",
        name="F",
        category="ideas",
        summary="S",
        paper=paper,
        baselines=("gpt",),
        claim=(own, own.model_copy(update={"id": "unread", "read": "", "unread": "Table 1"})),
    )
    (result,) = negative_results([newer, older], [card])
    assert (result.date, result.judgement.word) == ("2026-01-01", "not seen at nano")
    assert [each.word for each in result.later] == ["holds at nano"]
    (date, name, _, _, verdict, since) = log_line(result)
    assert (date, name) == ("2026-01-01", "fast.a_claim") and "GPT-3" in verdict
    assert since.startswith("2026-02-01, version 99: holds at nano")
    assert negative_results([newer], [card]) == []
