"""Lets as many ranks as one asks for train a stack: what a stack's techniques call their number of processes."""

from __future__ import annotations

from dataclasses import fields

from suite.entries.catalogue import catalogue, lookup, reference_of
from suite.record.job import Spelling, join

RANKS = "ranks"


def is_distributed(stack: str) -> bool:
    """Tells whether a technique of the stack trains on several ranks, by its hyper-parameter ``ranks``. Raises
    UnknownId or StackError."""
    return any(_has_ranks(name) for name in Spelling(stack).names)


def with_ranks(stack: str, ranks: int) -> Spelling:
    """Returns the stack on ``ranks`` ranks, in its canonical spelling.

    Raises ValueError where none of its techniques distributes a model, UnknownId or StackError for no stack.
    """
    if not is_distributed(stack):
        raise ValueError(
            f"{stack} trains in one process: stack it on a technique that distributes a model, or leave out --ranks"
        )
    return join(
        [
            (name, {**values, RANKS: str(ranks)} if _has_ranks(name) else values)
            for name, values in Spelling(stack).parts
        ]
    )


def spelled_ranks(stack: str) -> int | None:
    """Reads how many ranks the stack's spelling asks for; None where it leaves that to its techniques."""
    said = [values[RANKS] for name, values in Spelling(stack).parts if RANKS in values and _has_ranks(name)]
    return int(said[0]) if said else None


def reference_with_ranks(stack: str, ranks: int) -> str:
    """Returns the reference of the stack's cards, on as many ranks where it has some: both sides get equal hardware."""
    reference, _ = reference_of(stack)
    return with_ranks(reference, ranks) if is_distributed(reference) else reference


def _has_ranks(name: str) -> bool:
    return any(field.name == RANKS and field.init for field in fields(lookup("technique", name, catalogue()).technique))
