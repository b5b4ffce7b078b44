"""The simulator with measured costs and a link: closed forms of a link, and the papers' without one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from suite.pipeline.link import AlphaBeta
from suite.pipeline.simulated import PipelineCosts, on_link, simulated
from suite.pipeline.timetable import Broken, Kind, PipelineOp, flushed
from techniques.parallelism.gpipe.technique import fill_and_drain
from techniques.parallelism.mp_naive.technique import one_at_a_time

FREE = AlphaBeta(0.0, 1e30)
ALPHA, BETA, SIZE = 0.25, 8.0, 4  # a message takes half a second and a quarter


def costs(stages: int, **together: Any) -> PipelineCosts:
    return PipelineCosts([[1.0]] * stages, [[2.0]] * stages, [0.5] * stages, [SIZE] * stages, **together)


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (3, 5)])
def test_a_link_without_delay_changes_no_schedule(stages: int, micro: int) -> None:
    program = fill_and_drain(stages, micro).program(1)
    free = PipelineCosts([[1.0]] * stages, [[2.0]] * stages, [0.0] * stages, [SIZE] * stages)
    assert float(on_link(program, free, FREE).end) == pytest.approx(float(simulated(program, stages).end))


def test_one_that_works_at_a_time_pays_every_message_whole() -> None:
    timeline = on_link(one_at_a_time(3).program(1), costs(3), AlphaBeta(ALPHA, BETA))
    message = ALPHA + SIZE / BETA
    assert timeline.end == Fraction(3 * 1 + 3 * 2 + 4 * message + 0.5)  # the first stage updates last


def test_messages_in_a_row_wait_for_the_rate_and_not_for_the_delay() -> None:
    micro, slow = 4, SIZE / 2.0  # seconds of a message, twice a pass
    timeline = on_link(fill_and_drain(2, micro).program(1), costs(2), AlphaBeta(ALPHA, SIZE / slow))
    first = [slot for slot in timeline.ranks[1] if slot.op.kind == "forward"]
    assert [float(slot.start) for slot in first] == [1 + ALPHA + slow * (place + 1) for place in range(micro)]


def test_what_a_limiter_has_saved_up_goes_at_once_and_comes_back_in_pauses() -> None:
    """A message a second, of a burst of one and a half that comes back at half a one a second: the first two take
    nothing, the third what half of it takes, the fourth finds nothing saved."""
    link = AlphaBeta(ALPHA, SIZE / 2, burst_bytes=1.5 * SIZE)
    costs = PipelineCosts([[1.0], [0.0]], [[0.0], [0.0]], [0.0, 0.0], [SIZE, SIZE])
    timeline = on_link(fill_and_drain(2, 4).program(1), costs, link)
    arrived = [float(slot.start) - ALPHA for slot in timeline.ranks[1] if slot.op.kind == "forward"]
    assert arrived == [1.0, 2.0, 4.0, 6.0]


def test_ranks_that_update_together_wait_for_the_last_and_for_their_reductions() -> None:
    """Two all-reduces of two ranks: two hops each, in a ring, and what the ranks do for it."""
    link = AlphaBeta(ALPHA, BETA)
    alone = on_link(fill_and_drain(2, 2).program(1), costs(2), link)
    joint = on_link(fill_and_drain(2, 2).program(1), costs(2, joint=16, reductions=2, reduction_s=0.25), link)
    begins = {slot.start for slots in joint.ranks for slot in slots if slot.op.kind == "update"}
    assert begins == {alone.end - Fraction(0.5) + Fraction(2 * (2 * ALPHA + 0.25) + 16 / BETA)}


def test_ranks_that_wait_for_each_other_for_good_are_told_of() -> None:
    schedule = flushed(2, 1, lambda stage: [("forward", 0), ("backward", 0)] if stage else [("backward", 0)])
    with pytest.raises(Broken, match="for good"):
        on_link(schedule.program(1), costs(2, joint=1, reductions=1), FREE)
    with pytest.raises(Broken, match="for good"):
        simulated([[PipelineOp("backward", 0, 0, 0)], []], 2)


def test_a_pass_costs_what_it_does_at_its_place_in_the_batch() -> None:
    """The first micro-batch of each of two batches takes three times as long."""
    uneven = PipelineCosts([[3.0, 1.0]], [[2.0]], [0.5], [SIZE])
    program = fill_and_drain(1, 2).program(2)
    assert on_link(program, uneven, FREE).end == Fraction(2 * (3 + 1 + 2 * 2 + 0.5))
    assert [float(slot.end - slot.start) for slot in on_link(program, uneven, FREE).ranks[0]][:2] == [3.0, 1.0]


@pytest.mark.parametrize(("ahead", "begins"), [(None, 3.75), (2, 4.5), (1, 5.0)])
def test_a_message_leaves_when_its_receiver_expects_it(ahead: int | None, begins: float) -> None:
    """Two messages of 1.25 s each, made at 1 and at 2, to a rank that does F0 B0 F1 B1, a second and a half one each:
    F0 begins at 2.25. F1's message follows F0's at once, or begins at 3.25, when F0 is over, or at 3.75, when B0 is."""
    orders: list[list[tuple[Kind, int]]] = [
        [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)],
        [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)],
    ]
    timed = PipelineCosts([[1.0], [1.0]], [[0.5], [0.5]], [0.0, 0.0], [SIZE, SIZE], ahead=ahead)
    program = flushed(2, 2, lambda stage: orders[stage]).program(1)
    forward = [
        slot for slot in on_link(program, timed, AlphaBeta(0.0, SIZE / 1.25)).ranks[1] if slot.op.kind == "forward"
    ]
    assert [float(slot.start) for slot in forward] == [2.25, begins]
