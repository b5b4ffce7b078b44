"""A topic's section of the board, and its part of each technique's own section there.

Any module ``suite/topics/TOPIC/*_on_board.py`` has its section as ``ON_BOARD``, or several in a tuple; any
``*_on_page.py`` has its part as ``ON_PAGE``. Nothing else names them: the board finds the files
(:mod:`suite.topics.board.contents`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from suite.entries.card import Card
from suite.show.described import Section
from suite.show.pages.places import PlacedRow
from suite.show.pages.rendered import as_html

if TYPE_CHECKING:
    from suite.topics.board.report import Report


@dataclass(frozen=True)
class OnBoard:
    """A section of the board, made of a :class:`suite.topics.board.report.Report`.

    Attributes:
        order: sections stand in ascending order, no two with the same.
        section: makes it of a report; None where the report has nothing of it.
        link: the words of a link to the page that it has in Markdown; empty where it stands on the baselines' pages.
    """

    order: int
    section: Callable[[Report], Section | None]
    link: str = ""


Draws = Callable[[str, Sequence[PlacedRow]], Markup]
"""Draws a part of a stack's own section as Markup, of the stack and its rows; empty where there is nothing of it. Text
that is no Markup is escaped."""


@dataclass(frozen=True)
class OnPage:
    """A part of each technique's own section, made of a :class:`suite.topics.board.report.Report`.

    Attributes:
        order: parts stand in ascending order, no two with the same, the board's own among them
            (:mod:`suite.topics.board.sections`).
        of: gives what draws the part, of a report.
        title: the words that it is folded under; empty where it stands open.
    """

    order: int
    of: Callable[[Report], Draws]
    title: str = ""


def of_card(cards: Mapping[str, Card], section: Callable[[Card], Section | None]) -> Draws:
    """Gives what draws a card's section for the stack that is this one technique."""
    return lambda stack, placed: as_html(section(cards[stack]) if stack in cards else None, rank=4)
