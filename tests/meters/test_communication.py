"""Two real ranks on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.meters.communication import Communication, payload_bytes

HERE = Path(__file__).parent
MIB = 2**20
WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), str(rank), str(folder)],
            env=os.environ | {"PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors
    first, second = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD))
    assert all(first[name] == second[name] for name in first if name != "shards")
    return first


def test_a_shard_s_state_is_its_own_and_its_model_is_whole(results):
    whole = 64 * 128 * 4
    assert results["shards"]["state"] == results["shards"]["peak"] == [whole / 2, whole / 2, whole]
    assert results["shards"]["parameters"] == 64 * 128


@pytest.mark.parametrize(
    ("program", "operator"),
    [
        ("all_reduce", "allreduce_"),
        ("all_to_all", "alltoall_base_"),
        ("all_gather", "_allgather_base_"),
        ("reduce_scatter", "_reduce_scatter_base_"),
    ],
)
def test_a_collective_counts_once_with_the_whole_tensor(results, program, operator):
    assert results[program] == {operator: 16 * MIB}


def test_the_reducer_of_data_parallel_training_is_seen(results):
    assert results["data_parallel"]["allreduce_"] == 16 * MIB


def test_sharded_training_gathers_and_scatters(results):
    payload = results["sharded"]
    assert payload["_allgather_base_"] == payload["_reduce_scatter_base_"] == 16 * MIB


def test_payload_of_a_nest():
    assert payload_bytes([[torch.ones(2), torch.ones(3)], torch.ones(1, dtype=torch.int8), "text"]) == 21


def test_on_a_ring_an_all_reduce_equals_a_reduce_scatter_and_an_all_gather():
    one, two = Communication(), Communication()
    one.bytes_by_collective.update({"allreduce_": 1000})
    two.bytes_by_collective.update({"_reduce_scatter_base_": 1000, "_allgather_base_": 1000})
    assert one.ring_bytes(4) == two.ring_bytes(4) == 1500
