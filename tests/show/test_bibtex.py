"""Every card's paper is a BibTeX entry with balanced braces, a title, authors and a year."""

from __future__ import annotations

import re

import pytest

from suite.entries.catalogue import catalogue
from suite.show.bibtex import bibtex


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_an_entry_is_complete(name: str) -> None:
    text = bibtex(catalogue()[name].card)
    bare = re.sub(r"\\\\[{}]", "", text)
    assert text.startswith(f"@misc{{{name},") and bare.count("{") == bare.count("}")
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", text, re.MULTILINE))
    assert {"title", "author", "year"} <= fields.keys()
    assert re.fullmatch(r"(19|20)\d\d", fields["year"])
    assert all(each.strip() for each in fields["author"].split(" and "))


def test_the_authors_of_lion_are_twelve() -> None:
    assert bibtex(catalogue()["lion"].card).count(" and ") == 11


def test_what_is_not_printable_is_written_out() -> None:
    """A card may come from anybody, and a terminal obeys escape sequences."""
    card = catalogue()["lion"].card
    paper = card.paper.model_copy(
        update={"title": "a\x1b]0;b\x07", "venue": "ICLR 2024\x1b[2J", "url": "http://a\u202e"}
    )
    text = bibtex(card.model_copy(update={"paper": paper}))
    assert text.replace("\n", "").isprintable() and r"a\x1b]0;b\x07" in text
