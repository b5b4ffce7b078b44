"""Heads and neurons: told by what they move, and gone without a trace of them."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from suite.model.anatomy import anatomy, in_features, innermost, out_features, weight_matrix
from suite.model.pruning import Units, attention_heads, keep, mlp_neurons
from tests.model.further_models import logits, make
from tests.runs import new_run

HEADS = ["gpt_neox", "gptj", "albert", "deit3", "dropping_vit", "gpt2"]
NEURONS = [*HEADS, "bloom", "falcon", "phi3", "gemma2", "eva02", "beit", "swin", "t5"]


def without(model: nn.Module, units: list[Units], kept: slice) -> tuple[nn.Module, nn.Module]:
    """The model without the units outside of ``kept``, and a copy of the whole one in which they are at zero."""
    masked, small = model, copy.deepcopy(model)
    for each in {each.joint: each for each in units}.values():
        stay = list(range(each.count))[kept]
        columns = weight_matrix(innermost(next(p for p in anatomy(masked).linears if p.path == each.joint)).module)
        mask = torch.zeros(each.count, each.size)
        mask[stay] = 1
        with torch.no_grad():
            columns.mul_(mask.flatten())
        keep(small, each, stay)
    return small, masked


def units_of(name: str, kind: str) -> tuple[nn.Module, list[Units]]:
    model = make(name).eval()
    tell = attention_heads if kind == "heads" else mlp_neurons
    return model, tell(anatomy(model), partial(logits, model, name))


@pytest.mark.parametrize(("name", "kind"), [*((n, "heads") for n in HEADS), *((n, "neurons") for n in NEURONS)])
@pytest.mark.parametrize("kept", [slice(1, None, 2), slice(2, 3)])
@torch.no_grad()
def test_a_pruned_model_computes_what_the_masked_one_does(name: str, kind: str, kept: slice) -> None:
    model, units = units_of(name, kind)
    before = logits(model, name)
    small, masked = without(model, units, kept)
    torch.testing.assert_close(logits(small, name), logits(masked, name), rtol=1e-4, atol=1e-5)
    assert not torch.equal(logits(masked, name), before)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("baseline", ["bert", "gpt", "mae", "vit"])
def test_baselines_in_every_stack(baseline: str) -> None:
    run = new_run(baseline, size="nano", recipe="classic", steps=4)
    forward = partial(run.trial, run.model)
    heads, neurons = attention_heads(run.anatomy, forward), mlp_neurons(run.anatomy, forward)
    blocks = run.anatomy.every_block
    assert [each.count for each in heads] == [4] * len(blocks)
    for block, of_heads, of_neurons in zip(blocks, heads, neurons, strict=True):
        assert block.attention_output and block.mlp_output
        assert (of_heads.joint, of_neurons.joint) == (block.attention_output.path, block.mlp_output.path)
        assert of_heads.size * of_heads.count == in_features(block.attention_output.module)
        assert sum(len(rows) for each in of_heads.rows.values() for rows in each) == 3 * of_heads.size * 4
        assert list(of_neurons.rows.values()) == [tuple((n,) for n in range(of_neurons.count))]
        keep(run.model, of_heads, [0, 2, 3])
        keep(run.model, of_neurons, range(0, of_neurons.count, 3))
    assert [stack.heads for stack in anatomy(run.model).stacks] == [3] * len(run.anatomy.stacks)
    run.adopt(run.model)
    run.train(2)


def test_interleaved_rows_go_with_their_head() -> None:
    """GPT-NeoX holds query, key and value head by head, phi-3 its gate and its values one after the other."""
    _, units = units_of("gpt_neox", "heads")
    (rows,) = units[0].rows.values()
    assert rows[1] == tuple(range(24, 48))
    _, units = units_of("phi3", "neurons")
    (rows,) = units[0].rows.values()
    assert rows[3] == (3, 3 + units[0].count)


def test_the_layers_say_their_new_sizes() -> None:
    model, units = units_of("gpt2", "heads")
    keep(model, units[0], [0, 3])
    block = anatomy(model).blocks[0]
    assert block.attention_output
    assert (in_features(block.attention_output.module), out_features(block.attention_output.module)) == (16, 32)
    fused = block.attention_linears[0].module
    assert out_features(fused) == 48
    assert [tuple(each.shape) for each in fused.parameters()] == [(32, 48), (48,)]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("falcon", "heads", "serve several of the units"),
        ("falcon_grouped", "heads", "serve several of the units"),
        ("gemma2", "heads", "serve several of the units"),
        ("mixtral", "neurons", "not two or three linear layers"),
        ("swin", "heads", "does not run without"),
        ("bloom", "heads", "does not run without"),  # a slope of its position bias for each head
        ("xcit", "heads", "serve several|does not run|cannot tell|not the same"),
        ("pvt", "neurons", "does not run without"),
    ],
)
def test_what_cannot_go_alone_is_refused(name: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units_of(name, kind)


def test_one_unit_must_stay() -> None:
    model, units = units_of("gpt2", "neurons")
    with pytest.raises(ValueError, match="at least one must stay"):
        keep(model, units[0], [])
