"""Schedules for tests: any that a solver could make."""

from __future__ import annotations

from hypothesis import strategies as st

from suite.chain.schedule import TURN, Op, Schedule, tidied


@st.composite
def schedules(draw: st.DrawFn, depth: int, moves: bool = True) -> Schedule:
    """Any nesting of kept graphs and kept inputs over ``depth`` blocks, some values of which leave and come back."""
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
    return tidied(depth, ops)
