"""The language: what cannot run is refused where it fails, and activations go as soon as they may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.chain.plan import from_the_input
from suite.chain.schedule import TURN, Op, Schedule, ScheduleError, every_input, plain, segmented, tidied
from tests.chain.schedules import schedules


def test_a_schedule_reads_as_what_happens() -> None:
    assert str(segmented(3, [(0, 2)])) == "f0 f1 -x1 F2 -x2 -x3 | B2 F0 -x0 F1 -x1 -x2 B1 B0"


@pytest.mark.parametrize("depth", range(1, 6))
def test_forward_passes_are_those_of_the_formulas(depth: int) -> None:
    assert plain(depth).extra_forwards == 0
    assert every_input(depth).extra_forwards == depth
    assert segmented(depth, [(0, depth)]).extra_forwards == depth
    assert from_the_input(depth).extra_forwards == depth * (depth + 1) // 2


@given(st.data(), st.integers(1, 6))
def test_every_activation_is_dropped_before_it_is_made_again(data: st.DataObject, depth: int) -> None:
    there = {0}
    for op in data.draw(schedules(depth)).ops:
        if op.kind in ("run", "save"):
            assert op.block + 1 not in there
            there.add(op.block + 1)
        elif op.kind == "drop":
            there.remove(op.block)
    assert not there


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ([Op("save", 0), TURN, Op("back", 0)], "2 blocks run once each"),
        ([Op("save", 0), Op("save", 1), Op("back", 1), Op("back", 0)], "one turn"),
        ([Op("run", 0), Op("save", 1), TURN, Op("back", 1), Op("back", 0)], "operation 4, B0: block 0 is next"),
        ([Op("save", 0), Op("save", 1), TURN, Op("back", 0)], "operation 3, B0: block 1 is next"),
        ([Op("run", 0), Op("drop", 0), Op("save", 1), TURN, Op("back", 1), Op("save", 0)], "x0 is not there"),
        ([Op("save", 0), Op("drop", 0, 1), Op("save", 1), TURN], "a graph is whole"),
        ([Op("offload", 0, 1), Op("save", 0), Op("save", 1), TURN], "s0.1 is not there"),
        ([Op("save", 0), Op("save", 1), TURN, Op("back", 1)], "blocks 0 to 0 have no backward pass"),
        ([Op("save", 0), Op("load", 0), Op("save", 1), TURN], "operation 0, F0: the weights of block 0 are not there"),
        ([Op("load", 0), Op("save", 0), Op("load", 0), Op("save", 1), TURN], r"\+w0: .* there already"),
        ([Op("free", 1), Op("save", 0), Op("save", 1), TURN], "operation 0, -w1: no load has brought"),
        ([Op("load", 0), Op("free", 0), Op("save", 0), Op("save", 1), TURN], "nothing has used"),
        (
            [Op("load", 1), Op("save", 0), Op("save", 1), Op("free", 1), TURN, Op("back", 1), Op("back", 0)],
            "operation 5, B1: the weights of block 1",
        ),
        (
            [Op("save", 0), Op("load", 1), Op("save", 1), TURN, Op("back", 1), Op("back", 0)],
            r"the weights of blocks \[1\] stay",
        ),
    ],
)
def test_what_cannot_run_is_refused(ops: list[Op], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Schedule(2, tuple(ops))


@given(st.data(), st.integers(1, 6))
def test_without_its_moves_of_weights_a_schedule_is_the_same(data: st.DataObject, depth: int) -> None:
    schedule = data.draw(schedules(depth, weights=True))
    rest = Schedule(depth, tuple(op for op in schedule.ops if not op.moves_weights))
    assert rest == tidied(depth, [op for op in rest.ops if op.kind != "drop"])
    assert schedule.loaded or schedule == rest


def test_a_move_of_what_nothing_needs_is_left_out() -> None:
    ops = [Op("save", 0), Op("save", 1), Op("offload", 2), TURN, Op("back", 1), Op("back", 0)]
    assert tidied(2, ops) == plain(2)
