"""A record at which a view fails is found, left out and named; the others are shown as if it had never been there.

What a record may hold is checked when it is read (:mod:`suite.record.schema`), but no schema foresees every sum over
several of them. So a view gives up a part, with the records that it was computed from, and says why; here the one that
makes the difference is looked for among these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from suite.record.schema import Counted, Learned, Timed
from suite.record.store import Records
from suite.record.text import printable

PASSES = 8
"""Times that one record after the other is looked for; then all that a failing part was computed from is left out."""

Piece = Counted | Learned | Timed
V = TypeVar("V")


@dataclass(frozen=True)
class Failing:
    """Describes a part of a view that could not be computed from ``pieces``: from the last of these ``own``, in any
    case."""

    pieces: Sequence[Piece]
    own: Sequence[Piece]
    error: Exception


def from_sound(records: Records, compute: Callable[[Records], tuple[V, Sequence[Failing]]], left_out: list[str]) -> V:
    """Returns what ``compute`` makes of the records at which it does not fail; a sentence for each other one is added
    to ``left_out``."""
    view, failing = compute(records)
    for number in range(1, PASSES + 1):
        if not failing:
            break
        bad: dict[str, tuple[Piece, Exception]] = {}
        for part in failing:
            culprits = _culprits(part, compute) if number < PASSES else part.pieces
            bad |= {piece.id: (piece, part.error) for piece in culprits}
        left_out += [sentence(records, piece, error) for piece, error in bad.values()]
        records = without(records, bad)
        view, failing = compute(records)
    return view


def pieces_of(records: Records) -> list[Piece]:
    """Returns all that rows are made of."""
    return [*records.counted, *records.learned, *records.timed]


def without(records: Records, ids: Collection[str]) -> Records:
    """Returns all records but these."""
    return replace(
        records,
        counted=[count for count in records.counted if count.id not in ids],
        learned=[run for run in records.learned if run.id not in ids],
        timed=[timing for timing in records.timed if timing.id not in ids],
    )


def _culprits(failing: Failing, compute: Callable[[Records], tuple[V, Sequence[Failing]]]) -> Sequence[Piece]:
    """Returns the piece with which the failure begins, ours before those of others and older before newer, so that what
    was sound before is kept; where they do not fail by themselves, the part's own."""
    if len(failing.pieces) == 1:
        return failing.pieces
    ordered = sorted(failing.pieces, key=lambda piece: (bool(piece.source), piece.started))

    def fails(count: int) -> bool:
        return bool(compute(Records.of(ordered[:count]))[1])

    if not fails(len(ordered)):
        return failing.own
    low, high = 0, len(ordered)  # the first `low` do not fail, the first `high` do
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return [ordered[high - 1]]


def sentence(records: Records, piece: Piece, error: Exception) -> str:
    """Tells where a record stands, at which a view failed, and why."""
    where = records.places.get(piece.id) or f"record {printable(piece.id)}"
    words = printable(str(error)[:200])
    return f"{where}: it cannot be judged ({type(error).__name__}: {words}); it is left out and left in place"
