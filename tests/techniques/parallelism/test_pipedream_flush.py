"""1F1B's schedule against the closed forms."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from suite.pipeline.simulated import bubble_of_a_step
from suite.pipeline.timetable import check, in_flight, live_versions
from techniques.parallelism.pipedream_flush.technique import one_forward_one_backward


@given(st.integers(2, 6), st.integers(1, 9), st.integers(1, 4))
def test_the_bubble_is_gpipes_and_few_micro_batches_are_under_way(stages, micro_batches, backward):
    schedule = one_forward_one_backward(stages, micro_batches)
    program = schedule.program(3)
    check(program, stages)
    assert bubble_of_a_step(schedule, backward) == Fraction(stages - 1, micro_batches + stages - 1)
    assert [in_flight(ops) for ops in program] == [min(stages - stage, micro_batches) for stage in range(stages)]
    assert [live_versions(ops, stage) for stage, ops in enumerate(program)] == [1] * stages
