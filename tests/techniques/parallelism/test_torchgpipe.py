"""torchgpipe's clock against the paper's, and what runs again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.pipeline.simulated import simulated
from techniques.parallelism.torchgpipe.technique import TorchGPipe, by_the_clock, clock_cycles


@given(st.integers(2, 6), st.integers(1, 9))
def test_forward_passes_run_at_the_ticks_of_the_clock(stages, micro_batches):
    ticks = clock_cycles(stages, micro_batches)
    assert len(ticks) == micro_batches + stages - 1
    timeline = simulated(by_the_clock(stages, micro_batches).program(1), stages)
    ran = {
        (slot.start, slot.op.micro, slot.op.stage)
        for slots in timeline.ranks
        for slot in slots
        if slot.op.kind == "forward"
    }
    assert ran == {(at, micro, stage) for at, tick in enumerate(ticks) for micro, stage in tick}


@pytest.mark.parametrize(("checkpoint", "count"), [("always", 4), ("except_last", 3), ("never", 0)])
def test_as_many_forward_passes_are_made_again_as_the_mode_says(checkpoint, count):
    technique = TorchGPipe(micro_batches=4, checkpoint=checkpoint)
    assert sum(technique.recomputed(micro) for micro in range(8, 12)) == count
