"""Writes a technique's paper as a BibTeX entry, to be cited beside what was measured."""

from __future__ import annotations

import re

from suite.entries.card import Card
from suite.record.text import printable

BETWEEN = re.compile(r",\s*(?:and\s+)?|\s+and\s+|\s*&\s*")  # authors
SPECIAL = re.compile(r"([&%$#_{}])")


def bibtex(card: Card) -> str:
    """Writes the entry; its key is the technique's id. What the card does not know is left out."""
    paper = card.paper
    year = re.search(r"\b(?:19|20)\d\d\b", paper.venue)
    fields = {
        "title": f"{{{_escaped(paper.title)}}}",  # braces keep the case
        "author": " and ".join(
            _escaped(name) for name in re.split(r",\s*(?:and\s+)?|\s+and\s+|\s*&\s*", paper.authors)
        ),
        "year": year[0] if year else _year_of(paper.arxiv),
        "howpublished": _escaped(paper.venue),
        "eprint": paper.arxiv,
        "archiveprefix": "arXiv" if paper.arxiv else "",
        "url": paper.url,
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join(map(printable, [f"@misc{{{card.id},", *lines, "}"]))


def _year_of(arxiv: str) -> str:
    """Reads the year in an identifier like 2302.06675."""
    return f"20{arxiv[:2]}" if re.match(r"\d{4}\.\d+", arxiv) else ""


def _escaped(words: str) -> str:
    return SPECIAL.sub(r"\\\1", words)
