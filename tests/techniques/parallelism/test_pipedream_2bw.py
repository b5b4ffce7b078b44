"""PipeDream-2BW on two real ranks: one process whose weights are late by one update, to the bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import Delay, check, delays, in_flight, live_versions
from techniques.parallelism.pipedream_2bw.technique import PipeDream2BW, double_buffered
from tests.techniques.parallelism.pipelines import delayed, on_ranks, trained


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    late = partial(delayed, micro_batches=4, delay=lambda stage, place: Delay(1, 1))
    return {base: trained(mesh, PipeDream2BW(), base, late) for base in ("vit", "mae")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("baseline", ["vit", "mae"])
def test_the_trajectory_is_that_of_weights_one_update_late_to_the_bit(ranks, baseline):
    first, second = (rank[baseline] for rank in ranks)
    assert first["losses"] == second["losses"] == first["losses_alone"]
    assert first["same"], first["apart"]


def test_every_stage_has_two_versions(ranks):
    assert [rank["vit"]["versions"] for rank in ranks] == [2, 2]


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
