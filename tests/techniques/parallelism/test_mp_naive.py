"""Layers on two real ranks: one process's trajectory, of which each rank holds half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from techniques.parallelism.mp_naive.technique import NaiveModelParallel
from tests.runs import new_run
from tests.techniques.parallelism.pipelines import STEPS, alone, on_ranks, trained


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    return {
        "vit": trained(mesh, NaiveModelParallel(), "vit", alone),
        "gpt": trained(mesh, NaiveModelParallel(), "gpt", alone),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


def test_the_trajectory_is_one_processs_to_the_bit(ranks):
    """Clipping included, whose norm is over both ranks. A tied embedding's gradient is a sum of two, in any order."""
    for baseline in ("vit", "gpt"):
        first, second = (rank[baseline] for rank in ranks)
        assert first["losses"] == second["losses"] == first["losses_alone"]
        assert first["same"], first["apart"]
        assert all(torch.equal(each, second["parameters"][name]) for name, each in first["parameters"].items())


def test_a_layer_is_on_one_rank_and_a_tied_embedding_on_both(ranks):
    first, second = (set(rank["vit"]["held"]) for rank in ranks)
    assert first | second == set(ranks[0]["vit"]["parameters"]) and not first & second
    first, second = (set(rank["gpt"]["held"]) for rank in ranks)
    assert first | second == set(ranks[0]["gpt"]["parameters"])
    assert first & second == {"transformer.wte.weight"}


def test_a_boundary_costs_the_hidden_states_once_each_way(ranks):
    """2 b s d numbers for each boundary and step, and one for the loss."""
    batch, tokens, width = 4, 16, 32
    hidden = batch * tokens * width * 4
    first, second = (rank["vit"] for rank in ranks)
    assert first["sent"] == first["counted"] == STEPS * hidden
    assert second["sent"] == second["counted"] == STEPS * (hidden + 4)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="not compiled: take the recipe"):
        new_run("vit", NaiveModelParallel(), size="pico", recipe="compiled")
