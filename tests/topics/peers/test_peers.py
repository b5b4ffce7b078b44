"""Peers as contenders: found by the field, measured as stacks of their own, left out where they are not installed."""

import pytest

from suite.entries.catalogue import catalogue
from suite.entries.packages import done_by
from suite.measure.missing import pair_of
from suite.record.job import Setting
from suite.topics.peers import peer_stacks as peers
from suite.topics.peers.peer_stacks import peer_pairs, peers_of, with_updates


def test_a_technique_says_by_its_field_who_else_can_do_it() -> None:
    assert peers_of("lora") == ["peft"] == peers_of("lora:rank=4")
    for none in ("sam", "baseline", "lora:implementation=peft", "lora+lion"):
        assert peers_of(none) == []


def test_a_peer_has_the_same_settings() -> None:
    assert done_by("peft", "lora:rank=4") == "lora:implementation=peft,rank=4"


def test_each_pair_gets_one_beside_each_installed_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_installed", lambda name: name != "lion_pytorch")
    pairs = [pair_of(Setting(baseline="bert"), stack) for stack in ("lora", "sam", "lion", "lamb")]
    against, absent = peer_pairs(pairs)
    assert [(each.stack, each.reference) for each in against] == [
        ("lora", "lora:implementation=peft"),
        ("lion", "lion:implementation=timm"),
        ("lamb:variant=timm", "lamb:implementation=timm,variant=timm"),
    ]
    assert against[0].setting == pairs[0].setting and absent == ["lion_pytorch"]
    monkeypatch.setattr(peers, "is_installed", lambda name: False)
    assert peer_pairs(pairs) == ([], ["peft", "lion_pytorch", "timm"])


def test_of_an_optimizer_the_updates_are_timed_alone_too() -> None:
    pairs = [
        pair_of(Setting(baseline="bert"), *sides)
        for sides in (("lora", "lora:implementation=peft"), ("lion", "lion:implementation=timm"))
    ]
    assert [each.stack for each in with_updates(pairs)] == ["lora", "lion", "lion:part=update"]
    assert with_updates(pairs)[-1].reference == "lion:implementation=timm,part=update"


def test_cards_name_the_peers_that_their_techniques_have() -> None:
    for id, entry in catalogue().items():
        assert set(peers_of(id)) <= set(entry.card.peers)
