"""torchgpipe on two real ranks: against a batch accumulated in reverse, and its clock against the paper's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.simulated import simulated
from techniques.parallelism.torchgpipe.technique import TorchGPipe, by_the_clock, clock_cycles
from tests.techniques.parallelism.pipelines import Accumulating, alone, on_ranks, trained


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    reverse = partial(alone, technique=Accumulating(backwards=True))
    return {mode: trained(mesh, TorchGPipe(checkpoint=mode), "vit", reverse) for mode in ("except_last", "never")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("checkpoint", ["except_last", "never"])
def test_the_trajectory_is_that_of_accumulation_in_reverse_to_the_bit(ranks, checkpoint):
    first, second = (rank[checkpoint] for rank in ranks)
    assert first["losses"] == second["losses"] == pytest.approx(first["losses_alone"], rel=1e-6)  # summed otherwise
    assert first["same"], first["apart"]


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
