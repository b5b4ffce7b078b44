"""PipeDream's schedule: the paper's versions and delays, and no bubble."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import Delay, check, delays, in_flight, live_versions
from techniques.parallelism.pipedream.technique import delay, weight_stashing


@given(st.integers(2, 6))
def test_the_schedule_has_the_papers_versions_delays_and_no_bubble(stages):
    schedule = weight_stashing(stages)
    program = schedule.program(4 * stages)
    check(program, stages)
    for stage, ops in enumerate(program):
        assert live_versions(ops, stage) == in_flight(ops) == stages - stage
        for minibatch, found in delays(ops, stage).items():
            expected = min(minibatch, stages - 1 - stage)
            assert found == Delay(expected, expected)
        assert delay(stages, stage) == Delay(stages - 1 - stage, stages - 1 - stage)
    assert bubble_in_the_middle(schedule, 12 * stages) == 0
