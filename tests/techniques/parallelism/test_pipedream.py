"""PipeDream on two real ranks: one process with delayed weights, to the bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import Delay, check, delays, in_flight, live_versions
from techniques.parallelism.pipedream.technique import PipeDream, delay, weight_stashing
from tests.techniques.parallelism.pipelines import alone, delayed, on_ranks, trained


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    late = partial(delayed, micro_batches=1, delay=lambda stage, place: Delay(1 - stage, 1 - stage))
    return {
        "vit": trained(mesh, PipeDream(), "vit", late),
        "mae": trained(mesh, PipeDream(), "mae", late),
        "gpt": trained(mesh, PipeDream(), "gpt", alone),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("baseline", ["vit", "mae"])
def test_the_trajectory_is_that_of_delayed_weights_to_the_bit(ranks, baseline):
    first, second = (rank[baseline] for rank in ranks)
    assert first["losses"] == second["losses"] == first["losses_alone"]
    assert first["same"], first["apart"]


def test_a_tied_embedding_stays_one_and_the_delay_matters(ranks):
    first, second = (rank["gpt"] for rank in ranks)
    table = "transformer.wte.weight"
    assert torch.equal(first["held"][table], second["held"][table])
    assert first["losses"] != first["losses_alone"]


def test_the_first_stage_has_two_versions_the_last_one(ranks):
    assert [rank["vit"]["versions"] for rank in ranks] == [2, 1]


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
