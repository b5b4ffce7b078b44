"""Chimera's schedule against the closed forms."""

from __future__ import annotations

from fractions import Fraction

import pytest

from suite.pipeline.simulated import bubble_of_a_step
from suite.pipeline.timetable import check, in_flight, live_versions
from techniques.parallelism.chimera.technique import bidirectional


@pytest.mark.parametrize("stages", [2, 4, 6, 8])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_the_bubble_is_the_papers(stages, units):
    schedule = bidirectional(stages, units)
    check(schedule.program(2), stages)
    assert bubble_of_a_step(schedule, 1) == Fraction(stages - 2, 2 * units * stages + stages - 2)
    longer = Fraction(stages - 2) / (Fraction(3 * units * stages, 2) + stages - 2)
    if units == 1:
        assert bubble_of_a_step(schedule, 2) == longer
    elif stages > 2:
        assert bubble_of_a_step(schedule, 2) > longer, "direct concatenation does not reach it (section 3.5)"


@pytest.mark.parametrize("stages", [4, 6, 8])
def test_a_rank_has_between_half_and_all_of_a_unit_under_way(stages):
    program = bidirectional(stages).program(2)
    half = [stages // 2 + 1 + rank for rank in range(stages // 2)]
    assert [in_flight(ops) for ops in program] == half + half[::-1]
    assert all(live_versions(ops, stage) == 1 for ops in program for stage in range(stages))


@pytest.mark.parametrize("stages", [2, 4, 6, 8])
def test_the_two_pipelines_never_meet(stages):
    """At the paper's times a rank has one operation at a time, of either direction (section 3.1)."""
    for rank, ops in enumerate(bidirectional(stages, 2).step(0)):
        times = []
        for op in (each for each in ops if each.kind != "update"):
            unit, place = divmod(op.micro, stages)
            entered = 2 * stages * unit + 2 * (place % (stages // 2))
            times.append(entered + (op.stage if op.kind == "forward" else 2 * stages - 1 - op.stage))
            assert op.stage == (rank if place < stages // 2 else stages - 1 - rank)
        assert times == sorted(set(times))
