"""Schedules for tests: any that a solver could make."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from suite.chain.schedule import TURN, Op, Schedule, tidied


@st.composite
def schedules(draw: st.DrawFn, depth: int, moves: bool = True, weights: bool = False) -> Schedule:
    """Any nesting of kept graphs and kept inputs over ``depth`` blocks, some values of which leave and come back, and
    some blocks' ``weights``."""
    ops: list[Op] = []

    def saved(block: int) -> None:
        ops.append(Op("save", block))
        if moves and draw(st.booleans()):
            ops.extend([Op("offload", block, 0), Op("offload", block), Op("wait", block, 0)])

    def back(block: int) -> None:
        gone = [op.value for op in ops if op.kind == "offload" and op.block == block and op.item is not None]
        if gone and draw(st.booleans()):
            ops.append(Op("prefetch", block, 0))
        ops.append(Op("back", block))

    def over(start: int, end: int, forward: bool) -> None:
        if start == end:
            if forward:
                ops.append(TURN)
            return
        split = draw(st.integers(start, end - 1))
        if split == start:
            saved(start)
            over(start + 1, end, forward)
            back(start)
            return
        ops.extend(Op("run", block) for block in range(start, split))
        if moves and draw(st.booleans()):
            ops.append(Op("offload", start))
        over(split, end, forward)
        over(start, split, False)

    over(0, depth, True)
    return tidied(depth, draw(with_weights(depth, ops)) if weights else ops)


@st.composite
def with_weights(draw: st.DrawFn, depth: int, ops: list[Op]) -> list[Op]:
    """The operations with loads and frees of some blocks' weights, anywhere between two uses or around several."""
    before: list[list[Op]] = [[] for _ in ops]
    behind: list[list[Op]] = [[] for _ in ops]
    for block in range(depth):
        uses = [n for n, op in enumerate(ops) if op.computes and op.block == block]
        if not draw(st.booleans()):
            continue
        earliest: int | None = 0  # from where on the weights are away
        for use, following in pairwise([*uses, len(ops)]):
            if earliest is not None:
                before[draw(st.integers(earliest, use))].append(Op("load", block))
                earliest = None
            if following == len(ops) or draw(st.booleans()):
                freed = draw(st.integers(use, following - 1))
                behind[freed].append(Op("free", block))
                earliest = freed + 1
    return [each for first, op, last in zip(before, ops, behind, strict=True) for each in (*first, op, *last)]
