"""Tensor parallelism on two real ranks: one process's training, of which each rank has half of every layer."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from suite.loop.stack import Stack
from suite.meters.communication import Communication
from suite.model.anatomy import anatomy
from techniques.parallelism.tp_megatron.division import Cut, Division
from techniques.parallelism.tp_megatron.technique import CopyToRanks, RowParallel, TensorParallel, row_parallel
from tests.runs import new_run
from tests.techniques.parallelism.pipelines import STEPS, Rate, alone, on_ranks, run_of

USERS = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
"""A model with dropout, as the library gives it."""


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
        "cut": list(run.technique.techniques["own"].division.cuts),
        "parameters": {name: each.detach() for name, each in run.model.named_parameters()},
        "shares": [part.module.weight.numel() for part in anatomy(run.model).linears],
        "whole": [part.module.weight.numel() for part in anatomy(run.plain_model()).linears],
    }


def communicated(mesh: DeviceMesh) -> list[int]:
    """Bytes of the all-reduces of a forward pass, a backward pass, and the rest of a step."""
    run = run_of("gpt", TensorParallel(), mesh)
    run.train(1)
    batch, _ = run.next_batch()
    with Communication() as forward:
        loss = run.forward(run.technique.techniques["own"]._whole_batch(run))
    with Communication() as backward:
        run.backward(loss)
    with Communication() as step:
        run.train_step(batch, run.indices)
    counts = [each.bytes_by_collective for each in (forward, backward, step)]
    assert all(each.keys() == {"allreduce_"} for each in counts)
    return [each["allreduce_"] for each in counts]


def with_dropout(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    """A user's BERT in training: the seeds of dropout inside of what is cut, and the states outside of it."""
    (folder / "config.json").write_text(json.dumps(USERS))
    stack = Stack({"own": TensorParallel(), "rate": Rate()})
    run = new_run("bert", stack, size="pico", recipe="classic", steps=10, model=str(folder), mesh=mesh)
    drawn: dict[str, list[int]] = {"inside": [], "outside": []}
    for layer in (each for each in run.model.modules() if isinstance(each, RowParallel)):
        layer.register_forward_pre_hook(lambda *_: drawn["inside"].append(state()))
        layer.register_forward_hook(lambda *_: drawn["outside"].append(state()))
    run.train(2)
    cut = run.technique.techniques["own"].division.cuts
    return {
        **drawn,
        "replicated": {name: each.detach() for name, each in run.model.named_parameters() if name not in cut},
    }


def state() -> int:
    return zlib.crc32(torch.get_rng_state().numpy().tobytes())


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
    own = folder / str(mesh.get_local_rank())
    own.mkdir()
    return {
        **{baseline: trained(mesh, baseline) for baseline in ("bert", "gpt", "vit", "mae")},
        "communicated": communicated(mesh),
        "dropout": with_dropout(mesh, own),
        "refused": refused(mesh),
        "operators": operators(mesh),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_the_trajectory_is_one_processs_but_for_roundings(ranks, baseline):
    """Clipping included, whose norm is over both ranks. As a whole: Adam gives whole steps to a key's bias, whose
    gradient is rounding alone."""
    first, second = (rank[baseline] for rank in ranks)
    torch.testing.assert_close(first["losses"], first["losses_alone"], rtol=1e-4, atol=1e-4)
    assert (first["flat"] - first["flat_alone"]).norm() < 1e-4 * first["flat_alone"].norm()
    assert torch.equal(first["flat"], second["flat"]) and first["losses"] == second["losses"]
    assert first["validation"] == second["validation"]


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_a_rank_has_half_of_each_layers_matrices_and_what_is_whole_is_equal(ranks, baseline):
    first, second = (rank[baseline] for rank in ranks)
    assert [2 * each for each in first["shares"]] == first["whole"] and first["shares"] == second["shares"]
    for name, each in first["parameters"].items():
        if name not in first["cut"]:
            assert torch.equal(each, second["parameters"][name]), name


def test_a_layer_costs_four_all_reduces_of_its_hidden_states(ranks):
    """2 forward and 2 backward, each of b s d numbers, and one number for the norm."""
    batch, tokens, width, layers = 4, 16, 32, 2
    for rank in ranks:
        forward, backward, step = rank["communicated"]
        assert forward == backward and step == forward + backward + 4
        assert forward == 2 * layers * batch * tokens * width * 4


def test_f_and_g_are_the_whole_layer_in_float64(ranks):
    for rank in ranks:
        for divided, whole in rank["operators"].values():
            torch.testing.assert_close(divided, whole, rtol=1e-12, atol=1e-12)


def test_dropout_differs_inside_and_is_one_outside(ranks):
    first, second = (rank["dropout"] for rank in ranks)
    assert len(first["inside"]) == 16 and first["outside"] == second["outside"]
    assert not set(first["inside"]) & set(second["inside"]) and len(set(first["inside"])) == 16
    for name, each in first["replicated"].items():
        assert torch.equal(each, second["replicated"][name]), name


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
