"""Where each row stands on a page: its board, its anchors, and the categories that it is filtered by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from suite.entries.card import Card
from suite.judge.rows import Row
from suite.record.job import Spelling
from suite.show.described import slug
from suite.show.pages.board import Board
from suite.show.pages.markup import free_anchor


@dataclass(frozen=True)
class PlacedRow:
    """A row on the page. The anchors: ``anchor`` of its board, ``identity`` its own, ``technique`` of its stack."""

    board: Board
    anchor: str
    tier: str  # as shown; empty where the row has no numbers
    row: Row
    identity: str
    technique: str


def placed_rows(boards: Iterable[Board]) -> list[PlacedRow]:
    """Place all rows in the order of the page. A row keeps its identity whatever other rows are on the page."""
    taken: set[str] = set()
    techniques: dict[str, str] = {}
    placed = []
    for board in boards:
        first = board.rows[0]
        anchor = free_anchor(slug(f"{board.title} {first.conditions.key[:4]} {first.machine.key[:4]}"), taken)
        for tier, row in [*board.ranked, *(("", row) for row in board.failed)]:
            identity = free_anchor(f"{anchor}-{slug(row.stack)}", taken)
            if row.stack not in techniques:
                techniques[row.stack] = free_anchor(f"technique-{slug(row.stack)}", taken)
            placed.append(PlacedRow(board, anchor, tier, row, identity, techniques[row.stack]))
    return placed


def categories(stack: str, cards: Mapping[str, Card]) -> list[str]:
    """The categories of those techniques in the stack that are installed."""
    return sorted({cards[name].category for name in Spelling(stack).names if name in cards})


def kinds(stack: str, cards: Mapping[str, Card]) -> str:
    """The stack's categories, as the script filters by them."""
    return " ".join(categories(stack, cards))
