"""Reads the cards of all entries, for what reads every one of them: a broken card is named, and hurts no other
entry."""

from __future__ import annotations

import re
from collections.abc import Mapping

from suite.entries.card import Card, CardError
from suite.entries.catalogue import Entry, lookup


def with_cards(entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns the entries whose card can be read, and of the others why it cannot, by id."""
    sound: dict[str, Entry] = {}
    broken: dict[str, str] = {}
    for id, entry in entries.items():
        try:
            _ = entry.card
            sound[id] = entry
        except CardError as error:
            broken[id] = str(error)
    return sound, broken


SHORT = 4  # letters


def known_as(text: str, entries: Mapping[str, Entry]) -> list[Entry]:
    """Returns the entries that a reader means by ``text``, in any case: a category, an id, a name or an arXiv number,
    or else part of a name or of a paper's title. Raises UnknownId with the nearest ids and categories."""
    wanted = text.casefold().removeprefix("arxiv:").strip()
    for says in (_exactly, _in_part):
        if meant := [entry for entry in entries.values() if says(entry.card, wanted)]:
            return meant
    named = {name: [entry] for entry in entries.values() for name in (entry.card.category, entry.id)}
    return lookup("category or technique", text, named)


def _exactly(card: Card, wanted: str) -> bool:
    return wanted in (card.id, card.category, card.name.casefold(), card.paper.arxiv or None)


def _in_part(card: Card, wanted: str) -> bool:
    texts = [text.casefold() for text in (card.id, card.name, card.paper.title)]
    if len(wanted) < SHORT:  # three letters stand in many words: they are a name, and here perhaps a misspelt one
        return any(wanted in re.split(r"[\W_]+", text) for text in texts)
    return any(wanted in text for text in texts)
