"""Describes what a section says, before it is HTML or Markdown: :mod:`suite.show.pages.rendered` has a template for
each.

All words here are text from anywhere; a template escapes them. What is drawn already is a :class:`Figure`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def slug(words: str) -> str:
    """Writes the words as part of an anchor."""
    return re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-")


@dataclass(frozen=True)
class TableCell:
    """Describes a cell of a table. ``sort`` is what its column is sorted by, its words where that is None; ``kind`` its
    class on a page; ``title`` what a pointer is told; ``code``: it is a name; ``head``: it heads its row; ``mark``
    stands behind it."""

    words: str
    sort: object = None
    kind: str = ""
    title: str = ""
    code: bool = False
    head: bool = False
    mark: str = ""


@dataclass(frozen=True)
class TableRow:
    """Describes a row of a table; ``data`` is what a page filters it by, ``dated``: what it says is of older code."""

    cells: Sequence[TableCell]
    data: Mapping[str, str] = field(default_factory=dict)
    dated: bool = False


@dataclass(frozen=True)
class PageTable:
    """Describes a table, which ``caption`` names, on a page of many; ``label``: its name and a note, where no heading
    stands above it.

    ``columns`` are its head; ``align`` has a letter for each, l r or c, the last for all that follow. ``sorted_by``:
    the position of the column that it is sorted by; None where a page cannot sort it, -1 where it is not sorted yet.
    ``most``: how many lines a page shows; ``most_in_text``: how long it may be for text, which shows all lines or none.
    """

    anchor: str
    caption: str
    columns: Sequence[TableCell | str]
    lines: Sequence[TableRow]
    align: str = "lr"
    kind: str = ""
    sorted_by: int | None = -1
    label: tuple[str, str] = ("", "")
    most: int | None = None
    most_in_text: int | None = None

    @property
    def head(self) -> list[TableCell]:
        return [column if isinstance(column, TableCell) else TableCell(column) for column in self.columns]

    def aligned(self, position: int) -> str:
        return self.align[min(position, len(self.align) - 1)]

    @property
    def shown(self) -> Sequence[TableRow]:
        return self.lines[: self.most]

    @property
    def is_too_long_for_text(self) -> bool:
        return self.most_in_text is not None and len(self.lines) > self.most_in_text


@dataclass(frozen=True)
class Paragraph:
    """Describes a paragraph; ``kind`` is its class on a page. ``in_text``: text has it, too."""

    words: str
    kind: str = ""
    in_text: bool = True


@dataclass(frozen=True)
class Subheading:
    words: str


@dataclass(frozen=True)
class Item:
    """Describes an item of a list: a name in code font, where it has one, and what is said of it."""

    words: str
    name: str = ""


@dataclass(frozen=True)
class Items:
    items: Sequence[Item]


@dataclass(frozen=True)
class Quoted:
    """Holds words as they are, line by line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """Holds an SVG element that is safe in a page; ``caption`` says what it shows. ``in_text``: text has it as a
    file."""

    svg: str
    caption: str
    in_text: bool = False


@dataclass(frozen=True)
class Folded:
    """Holds parts that a page opens by a click on their title; ``number`` of what is in them, behind it.
    ``in_text_alone``: the page has them elsewhere."""

    title: str
    parts: Sequence[Part]
    number: int | None = None
    in_text_alone: bool = False


@dataclass(frozen=True)
class Article:
    """Describes a part with a title of its own, which a page filters by ``data`` and links to ``link``, an anchor on
    it."""

    anchor: str
    title: str
    subtitle: str
    parts: Sequence[Part]
    data: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    dated: str = ""


@dataclass(frozen=True)
class Section:
    """Describes a section, whose ``introduction`` stands on a page, which opens the rest by a click, but where it
    ``is_open``; ``reading`` says how to read it."""

    anchor: str
    title: str
    introduction: str
    parts: Sequence[Part]
    reading: str = ""
    is_open: bool = False


Part = Paragraph | Subheading | Items | Quoted | Figure | PageTable | Folded | Article
