"""Tensor parallelism on two real ranks: one process's training, of which each rank has half of every layer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from suite.model.anatomy import anatomy
from techniques.parallelism.tp_megatron.division import Cut, Division
from techniques.parallelism.tp_megatron.technique import CopyToRanks, TensorParallel, row_parallel
from tests.runs import new_run
from tests.techniques.parallelism.pipelines import STEPS, Rate, alone, on_ranks, run_of

BASELINES = ("gpt", "mae")  # layers that are fused and transposed; two stacks of blocks


def trained(mesh: DeviceMesh, baseline: str) -> dict[str, Any]:
    run = run_of(baseline, TensorParallel(), mesh)
    losses = run.train(STEPS)
    validation = run.evaluate()["loss"]
    whole = dict(run.technique.evaluated(run.model, run).named_parameters())
    found: dict[str, Any] = {"flat": torch.cat([each.detach().flatten() for each in whole.values()])}
    if run.rank == 0:
        found["losses_alone"], parameters = alone(baseline, {})
        found["flat_alone"] = torch.cat([parameters[name].flatten() for name in whole])
    return {
        **found,
        "losses": losses,
        "validation": validation,
    }


def refused(mesh: DeviceMesh) -> str:
    """A user's model whose heads share a norm of queries and keys: between f and g."""
    plain = run_of("vit", Rate()).model
    for block in anatomy(plain).every_block:
        attention = block.attention.module
        attention.q_norm = nn.LayerNorm(attention.head_dim)
    technique = TensorParallel()
    technique.run = SimpleNamespace(
        trial=lambda changed: changed(torch.randn(2, 1, 8, 8)),
        rank=mesh.get_local_rank(),
        group=mesh.get_group(),
        device=torch.device("cpu"),
        seed=0,
        step=0,
    )
    with pytest.raises(ValueError) as error:
        technique.parallelize(plain, mesh)
    return str(error.value)


def operators(mesh: DeviceMesh) -> dict[str, tuple[Tensor, Tensor]]:
    """f and g around an MLP in float64 and the same in one piece: outputs and gradients."""
    torch.manual_seed(0)
    a, b, bias, x = (torch.randn(*size, dtype=torch.float64) for size in ((8, 4), (4, 8), (4,), (3, 4)))
    rank, group = mesh.get_local_rank(), mesh.get_group()
    own_a, own_b = a[rank * 4 : rank * 4 + 4].clone(), b[:, rank * 4 : rank * 4 + 4].clone()
    pieces = [each.clone().requires_grad_() for each in (own_a, own_b, bias, x)]
    copied = CopyToRanks.apply(pieces[3], group)
    divided = row_parallel(F.gelu(copied @ pieces[0].T), pieces[1], pieces[2], group)
    (divided**2).sum().backward()
    wholes = [each.clone().requires_grad_() for each in (a, b, bias, x)]
    whole = F.linear(F.gelu(wholes[3] @ wholes[0].T), wholes[1], wholes[2])
    (whole**2).sum().backward()
    gradients = [each.grad for each in wholes]
    gradients[0], gradients[1] = gradients[0][rank * 4 : rank * 4 + 4], gradients[1][:, rank * 4 : rank * 4 + 4]
    pairs = {name: (one.grad, two) for name, one, two in zip("abcx", pieces, gradients, strict=True)}
    return {"output": (divided.detach(), whole.detach()), **pairs}


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    return {
        **{baseline: trained(mesh, baseline) for baseline in BASELINES},
        "refused": refused(mesh),
        "operators": operators(mesh),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_trajectory_is_one_processs_but_for_roundings(ranks, baseline):
    """Clipping included, whose norm is over both ranks. As a whole: Adam gives whole steps to a key's bias, whose
    gradient is rounding alone."""
    first, second = (rank[baseline] for rank in ranks)
    torch.testing.assert_close(first["losses"], first["losses_alone"], rtol=1e-4, atol=1e-4)
    assert (first["flat"] - first["flat_alone"]).norm() < 1e-4 * first["flat_alone"].norm()
    assert torch.equal(first["flat"], second["flat"]) and first["losses"] == second["losses"]
    assert first["validation"] == second["validation"]


def test_f_and_g_are_the_whole_layer_in_float64(ranks):
    for rank in ranks:
        for divided, whole in rank["operators"].values():
            torch.testing.assert_close(divided, whole, rtol=1e-12, atol=1e-12)


def test_a_norm_that_all_heads_share_is_refused(ranks):
    for rank in ranks:
        assert "q_norm.bias belongs to heads or units of all ranks" in rank["refused"]


def test_a_fused_layer_is_cut_by_heads():
    """GPT-2's query, key and value are one layer: a rank has its heads' part of each."""
    run = run_of("gpt", Rate())
    division = Division.of(run.model, lambda: run.trial(run.model), 2)
    cut = division.cuts["transformer.h.0.attn.c_attn.weight"]
    width = run.anatomy.width
    halves = [[*range(start, start + width // 2)] for start in (0, width, 2 * width)]
    assert cut.dimension == 1 and list(cut.places[0]) == [place for half in halves for place in half]
    parts = [torch.tensor([place]) for place in ((0, 2, 4), (1, 3, 5))]
    assert Cut(1, ((0, 2, 4), (1, 3, 5))).joined(parts).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="not compiled: take the recipe"):
        new_run("vit", TensorParallel(), size="pico", recipe="compiled")
    run = run_of("vit", Rate())
    with pytest.raises(ValueError, match="do not divide among 3 ranks: set ranks to a divisor"):
        Division.of(run.model, lambda: run.trial(run.model), 3)


@pytest.mark.parametrize(
    ("stack", "ranks", "sentence"),
    [
        ("lora", 2, r"tp_megatron and lora cannot be stacked: .*attn.c_proj joins\); take dp_ddp"),
        ("albert_sharing", 2, r"tp_megatron and albert_sharing cannot .* \(transformer.*divide\); take dp_ddp"),
        ("lora", 3, "^transformer.*do not divide among 3 ranks: set ranks to a divisor"),
    ],
)
def test_a_technique_is_named_for_layers_that_it_changed_and_not_for_the_model_s(stack, ranks, sentence):
    """Four heads do not divide among three ranks, whatever stands beside: and what torch said is no advice."""
    run = new_run("gpt", stack, size="pico", recipe="classic", steps=2)
    with pytest.raises(ValueError, match=sentence):
        TensorParallel(ranks=ranks)._division(run.model, run)
