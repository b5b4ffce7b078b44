"""PipeDream-2BW's schedule: two versions, a delay of one update, and no bubble."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import Delay, check, delays, in_flight, live_versions
from techniques.parallelism.pipedream_2bw.technique import double_buffered


@given(st.integers(2, 5), st.integers(0, 4))
def test_the_schedule_has_two_versions_a_delay_of_one_and_no_bubble(stages, more):
    micro_batches = stages + more
    schedule = double_buffered(stages, micro_batches)
    program = schedule.program(6)
    check(program, stages)
    for stage, ops in enumerate(program):
        assert live_versions(ops, stage) == 2
        assert in_flight(ops) == stages - stage
        for micro, found in delays(ops, stage).items():
            assert found == (Delay(0, 0) if micro < micro_batches else Delay(1, 1))
    assert bubble_in_the_middle(schedule, 12) == 0
