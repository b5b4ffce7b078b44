"""Turns a schedule into a tree of runs: what autograd's own graph can follow.

    schedule   f0 f1 f2 F3 | B3   f0 f1 F2 B2   F0 F1 B1 B0      f: without a graph, F: with it, B: backward
    tree       [Span(0, 3, (Span(0, 2, (0, 1)), 2)), 3]

A tree is a list of items: ``3`` (call 3 keeps its graph) or ``Span(2, 6, items)`` (calls 2 to 5 leave their inputs
alone; they run again when the backward pass asks for a value, and then ``items`` say what is kept). Most solvers'
schedules are trees; one that saves a graph early and runs a later block from further back is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from suite.chain.schedule import Kind, Op, Schedule, ScheduleError


class Span(NamedTuple):
    """Calls ``start`` to ``end`` - 1, which run again together; ``items`` say what their rerun keeps."""

    start: int
    end: int
    items: tuple[Item, ...]


Item: TypeAlias = int | Span


class NotNested(ScheduleError):
    """Is raised for a schedule that is no tree of runs."""


def nested(schedule: Schedule) -> tuple[Item, ...]:
    """Returns the tree of a schedule that loads no weights, and moves values on the way there alone. Raises
    NotNested."""
    if schedule.loaded or any(op.kind == "offload" for op in schedule.backward):
        raise NotNested("a schedule that moves weights, or what runs again, is no tree of runs")
    rest = [op for op in reversed(schedule.ops) if op.computes]

    def take(kinds: tuple[Kind, ...], block: int) -> Op:
        if not rest or rest[-1].kind not in kinds or rest[-1].block != block:
            raise NotNested(f"{' or '.join(kinds)} {block} is due, and {rest[-1] if rest else 'nothing'} comes")
        return rest.pop()

    def items(start: int, end: int) -> tuple[Item, ...]:
        saved = [take(("run", "save"), block).kind == "save" for block in range(start, end)]
        found: list[Item] = []
        block = end - 1
        while block >= start:
            if saved[block - start]:
                take(("back",), block)
                found.insert(0, block)
                block -= 1
                continue
            first = rest[-1].block if rest else -1
            if not start <= first <= block or any(saved[first - start : block - start + 1]):
                raise NotNested(f"block {block} is due, and no run that ends there begins")
            found.insert(0, Span(first, block + 1, items(first, block + 1)))
            block = first - 1
        return tuple(found)

    return items(0, schedule.depth)


def starting(items: Sequence[Item], index: int, last: int) -> Iterator[Span]:
    """Yields the runs that call ``index`` opens, the outermost first; ``last`` is the call before it (of those that
    came)."""
    for item in items:
        if isinstance(item, Span) and last < item.start <= index < item.end:
            yield item
            yield from starting(item.items, index, last)


def again(items: Sequence[Item]) -> frozenset[int]:
    """Returns the calls that run again."""
    return frozenset(index for item in items if isinstance(item, Span) for index in range(item.start, item.end))
