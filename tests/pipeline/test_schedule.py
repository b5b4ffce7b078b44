"""Programs that no pipeline can carry out are refused, with the operation; versions of small ones by hand."""

from __future__ import annotations

import pytest

from suite.pipeline.simulated import simulated
from suite.pipeline.timetable import (
    Broken,
    Delay,
    PipelineOp,
    PipelineSchedule,
    check,
    delays,
    in_flight,
    live_versions,
)

F0, B0, U1 = PipelineOp("forward", 0, 0, 0), PipelineOp("backward", 0, 0, 0), PipelineOp("update", 0, -1, 1)


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([F0, F0], "is made twice"),
        ([B0, F0], "comes before its forward pass"),
        ([F0, B0, PipelineOp("update", 0, -1, 2)], "follows version 0"),
        ([PipelineOp("forward", 0, 0, 1)], "a version that is not made yet: 0 is the newest"),
    ],
)
def test_broken_programs_are_named(ops, words):
    with pytest.raises(Broken, match=words):
        check([ops], 1)


def test_a_micro_batch_on_two_ranks_at_one_stage_is_made_twice():
    with pytest.raises(Broken, match=r"rank 1: .* is made twice"):
        check([[F0, B0, U1], [F0, B0, U1]], 1)


def test_ranks_that_wait_for_each_other_are_named():
    first = [PipelineOp("forward", 0, 0, 0), PipelineOp("backward", 0, 0, 0), PipelineOp("forward", 0, 1, 0)]
    second = [PipelineOp("forward", 1, 1, 0), PipelineOp("forward", 1, 0, 0), PipelineOp("backward", 1, 0, 0)]
    with pytest.raises(Broken, match="wait for each other for good"):
        simulated([first, second], 2)


def test_versions_and_delays_of_a_small_program():
    old, new = PipelineOp("forward", 0, 1, 0), PipelineOp("backward", 0, 1, 0)
    ops = [F0, old, B0, U1, new, PipelineOp("update", 0, -1, 2)]
    assert live_versions(ops, 0) == 2, "the second micro-batch comes back at the first version"
    assert delays(ops, 0) == {0: Delay(0, 0), 1: Delay(1, 1)}
    assert in_flight(ops) == 2


def test_a_schedule_says_who_has_what():
    schedule = PipelineSchedule(
        2, 1, lambda number: [[F0, B0, U1], [PipelineOp("forward", 1, 0, 0), PipelineOp("backward", 1, 0, 0)]]
    )
    assert schedule.ranks == 2
    assert [schedule.stages_of(rank) for rank in range(2)] == [[0], [1]]
    assert schedule.place(1, 7) == 1


def test_a_timeline_knows_its_bubble_in_a_window():
    timeline = simulated([[F0, B0, U1], [PipelineOp("forward", 1, 0, 0), PipelineOp("backward", 1, 0, 0)]], 2)
    assert timeline.end == 6
    assert timeline.bubble() == timeline.bubble(until=timeline.end)
    assert float(timeline.bubble()) == 0.5
    assert timeline.busy(since=timeline.end - 2) == 2
