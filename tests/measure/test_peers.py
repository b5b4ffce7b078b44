"""Peers as contenders: found by the field, measured as stacks of their own, left out where they are not installed."""

import pytest

from suite.entries.catalogue import catalogue
from suite.measure import peers
from suite.measure.peers import done_by, peer_pairs, peers_of
from suite.measure.plan import pair_of
from suite.record.job import Setting


def test_a_technique_says_by_its_field_who_else_can_do_it() -> None:
    assert peers_of("lora") == ["peft"] == peers_of("lora:rank=4")
    for none in ("lion", "baseline", "lora:implementation=peft", "lora+lion"):
        assert peers_of(none) == []


def test_a_peer_has_the_same_settings() -> None:
    assert done_by("peft", "lora:rank=4") == "lora:implementation=peft,rank=4"


def test_each_pair_gets_one_beside_each_installed_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [pair_of(Setting(baseline="bert"), stack) for stack in ("lora", "lion")]
    against, absent = peer_pairs(pairs)
    assert [(each.stack, each.reference) for each in against] == [("lora", "lora:implementation=peft")]
    assert against[0].setting == pairs[0].setting and not absent
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peer_pairs(pairs) == ([], ["peft"])


def test_cards_name_the_peers_that_their_techniques_have() -> None:
    for id, entry in catalogue().items():
        assert set(peers_of(id)) <= set(entry.card.peers)
