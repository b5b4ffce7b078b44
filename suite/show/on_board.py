"""A topic's section of the board.

Any module ``suite/topics/TOPIC/*_on_board.py`` has its own as ``ON_BOARD``, and nothing else names it: the board finds
them all (:mod:`suite.topics.board.contents`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suite.show.described import Section


@dataclass(frozen=True)
class OnBoard:
    """A section of the board, made of a :class:`suite.topics.board.report.Report`.

    Attributes:
        order: sections stand in ascending order.
        section: makes it of a report; None where the report has nothing of it.
        link: the words of a link to the page that it has in Markdown; empty where it stands on the baselines' pages.
    """

    order: int
    section: Callable[[Any], Section | None]
    link: str = ""
