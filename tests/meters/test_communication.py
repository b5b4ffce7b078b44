"""Two real ranks on loopback. The interface is everybody's, so each wire figure is the least of a few repeats."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.meters.communication import Communication, payload_bytes, wire_bytes_sent

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
    assert all(first[name][:2] == second[name][:2] for name in first if name != "shards")
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
    calls, payload, _ = results[program]
    assert (calls, payload) == ({operator: 1}, {operator: 16 * MIB})


def test_the_reducer_of_data_parallel_training_is_seen(results):
    calls, payload, _ = results["data_parallel"]
    assert payload["allreduce_"] == 16 * MIB
    assert calls["allreduce_"] == 1


def test_sharded_training_gathers_and_scatters(results):
    calls, payload, _ = results["sharded"]
    assert calls["_allgather_base_"] == calls["_reduce_scatter_base_"] == 1
    assert payload["_allgather_base_"] == payload["_reduce_scatter_base_"] == 16 * MIB


@pytest.mark.parametrize(
    ("program", "factor"), [("all_reduce", 1.0), ("all_to_all", 0.5), ("all_gather", 0.5), ("reduce_scatter", 1.0)]
)
def test_wire_bytes_of_gloo(results, program, factor):
    """Per rank and byte of the tensor; gloo's reduce-scatter costs an all-reduce, where (N-1)/N = 0.5 would do."""
    wire = results[program][2]
    if wire is None:
        pytest.skip("no interface counters here")
    assert factor <= wire / WORLD / (16 * MIB) < factor * 1.1


def test_without_counters_there_is_a_reason_and_no_number(tmp_path):
    with Communication("lo", root=tmp_path) as meter:
        torch.ones(3) + 1
    assert meter.wire_bytes is None
    assert "lo" in meter.wire_reason
    assert (meter.calls, meter.bytes) == (0, 0)


def test_wire_bytes_are_a_difference(tmp_path):
    counter = tmp_path / "eth0" / "statistics"
    counter.mkdir(parents=True)
    (counter / "tx_bytes").write_text("100\n")
    assert wire_bytes_sent("eth0", tmp_path) == 100
    with Communication("eth0", root=tmp_path) as meter:
        (counter / "tx_bytes").write_text("350\n")
    assert (meter.wire_bytes, meter.wire_reason) == (250, "")


def test_payload_of_a_nest():
    assert payload_bytes([[torch.ones(2), torch.ones(3)], torch.ones(1, dtype=torch.int8), "text"]) == 21


def test_on_a_ring_an_all_reduce_equals_a_reduce_scatter_and_an_all_gather():
    one, two = Communication(), Communication()
    one.bytes_by_collective.update({"allreduce_": 1000})
    two.bytes_by_collective.update({"_reduce_scatter_base_": 1000, "_allgather_base_": 1000})
    assert one.ring_bytes(4) == two.ring_bytes(4) == 1500
