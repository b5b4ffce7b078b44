"""The cards of all entries, for what reads every one of them: a broken card is named, and hurts no other entry."""

from __future__ import annotations

from collections.abc import Mapping

from suite.contract.card import CardError
from suite.contract.catalogue import Entry


def with_cards(entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """The entries whose card can be read, and of the others why it cannot, by id."""
    sound: dict[str, Entry] = {}
    broken: dict[str, str] = {}
    for id, entry in entries.items():
        try:
            _ = entry.card
            sound[id] = entry
        except CardError as error:
            broken[id] = str(error)
    return sound, broken
