"""PipeMare's schedule: the paper's delays on average, and one version of the weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import check, delays, live_versions
from techniques.parallelism.pipemare.technique import PipeMare, ahead, without_stash


@given(st.integers(2, 5), st.integers(1, 6))
def test_forward_passes_are_late_by_the_papers_delay_on_average(stages, micro_batches):
    schedule = without_stash(stages, micro_batches)
    steps = 4 * stages
    program = schedule.program(steps)
    check(program, stages)
    for stage, ops in enumerate(program):
        assert live_versions(ops, stage) == 1
        late = {micro: each for micro, each in delays(ops, stage).items() if micro >= 2 * stages * micro_batches}
        assert all(each.backward == 0 for each in late.values())
        assert sum(each.forward for each in late.values()) * micro_batches == ahead(stages, stage) * len(late)
    assert bubble_in_the_middle(schedule, 3 * steps) == 0


def test_bad_settings_say_what_to_do():
    with pytest.raises(ValueError, match="take the recipe classic"):
        PipeMare().model(torch.nn.Identity(), SimpleNamespace(recipe=SimpleNamespace(precision="bf16")))
