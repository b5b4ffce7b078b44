"""1F1B on two real ranks: against a batch that one process accumulates, and its schedule against the closed forms."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.simulated import bubble_of_a_step
from suite.pipeline.timetable import check, in_flight, live_versions
from techniques.parallelism.pipedream_flush.technique import PipeDreamFlush, one_forward_one_backward
from tests.techniques.parallelism.pipelines import Accumulating, alone, on_ranks, trained


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    accumulated = partial(alone, technique=Accumulating())
    return {base: trained(mesh, PipeDreamFlush(), base, accumulated) for base in ("vit", "mae")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("baseline", ["vit", "mae"])
def test_the_trajectory_is_that_of_accumulation_to_the_bit(ranks, baseline):
    first, second = (rank[baseline] for rank in ranks)
    assert first["losses"] == second["losses"] == first["losses_alone"]
    assert first["same"], first["apart"]


@given(st.integers(2, 6), st.integers(1, 9), st.integers(1, 4))
def test_the_bubble_is_gpipes_and_few_micro_batches_are_under_way(stages, micro_batches, backward):
    schedule = one_forward_one_backward(stages, micro_batches)
    program = schedule.program(3)
    check(program, stages)
    assert bubble_of_a_step(schedule, backward) == Fraction(stages - 1, micro_batches + stages - 1)
    assert [in_flight(ops) for ops in program] == [min(stages - stage, micro_batches) for stage in range(stages)]
    assert [live_versions(ops, stage) for stage, ops in enumerate(program)] == [1] * stages
