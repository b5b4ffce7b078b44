"""Rows are told by what they move: against the orders that the libraries' own code documents, and by what they do."""

from functools import partial

import pytest
import torch
from torch import nn

from suite.model.anatomy import anatomy, weight_matrix
from suite.model.calls import undisturbed
from suite.model.projections import ROLES, projection_rows
from tests.model.further_models import logits, make

WIDTH, HEAD = 32, 8


def by_head(heads: int, *parts: tuple[str, int]) -> dict[str, list[int]]:
    """Rows of a weight that holds, for each of ``heads`` groups, ``parts``: a role and how many heads of it."""
    rows: dict[str, list[int]] = {role: [] for role in ROLES}
    position = 0
    for _ in range(heads):
        for role, count in parts:
            rows[role] += range(position, position + count * HEAD)
            position += count * HEAD
    return rows


EXPECTED = {
    "gpt_neox": by_head(4, ("query", 1), ("key", 1), ("value", 1)),
    "bloom": by_head(4, ("query", 1), ("key", 1), ("value", 1)),
    "falcon": by_head(1, ("query", 4), ("key", 1), ("value", 1)),
    "falcon_grouped": by_head(2, ("query", 2), ("key", 1), ("value", 1)),
    "gpt_bigcode": by_head(1, ("query", 4), ("key", 1), ("value", 1)),
    "phi3": by_head(1, ("query", 4), ("key", 1), ("value", 1)),
    "gpt2": by_head(1, ("query", 4), ("key", 4), ("value", 4)),
    "beit": by_head(1, ("query", 4), ("key", 4), ("value", 4)),
    "xcit": by_head(1, ("query", 4), ("key", 4), ("value", 4)),
    "cait": by_head(1, ("query", 4), ("key", 4), ("value", 4)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_of_fused_weights(name: str) -> None:
    model = make(name)
    blocks = anatomy(model).blocks
    found = projection_rows(model, blocks, partial(logits, model, name))
    assert len(found) == len(blocks) == 4
    for block, rows in zip(blocks, found, strict=True):
        assert len({each.layer.path for each in rows.values()}) == 1
        assert all(each.layer.module is model.get_submodule(each.layer.path) for each in rows.values())
        assert rows["query"].layer.path.startswith(block.path)
        assert {role: list(each.rows) for role, each in rows.items()} == EXPECTED[name]
        assert all(each.bypassed == (name == "beit") for each in rows.values())


@pytest.mark.parametrize("name", ["bloom", "falcon_grouped", "gptj", "pvt", "swinv2", "t5"])
def test_without_its_value_rows_a_block_attends_to_nothing(name: str) -> None:
    """Also of layers that are not fused, or half: an own query beside keys and values in one."""
    model = make(name).eval()
    blocks = anatomy(model).blocks
    found = projection_rows(model, blocks, partial(logits, model, name))
    heard: list[bool] = []
    for block in blocks:
        assert block.attention_output is not None
        block.attention_output.module.register_forward_pre_hook(lambda _, args: heard.append(bool(args[0].any())))
    for role, silent in (("key", False), ("value", True)):
        with torch.no_grad():
            for rows in found:
                layer, numbers = rows[role].layer.module, list(rows[role].rows)
                weight_matrix(layer)[numbers] = 0
                if getattr(layer, "bias", None) is not None:
                    layer.bias[numbers] = 0
        heard.clear()
        if name == "swinv2":  # its value bias is a parameter of its own
            for block in blocks:
                nn.init.zeros_(block.attention.module.v_bias)
        with torch.no_grad():
            logits(model, name)
        assert set(heard) == {not silent}


def test_a_block_that_computes_no_attention_is_refused() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.mlp = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(24, 8)}), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.mlp(x) + self.attn["proj"](self.attn["qkv"](x).mean(1, keepdim=True))

    model = nn.Sequential(Averaging(), Averaging())
    with pytest.raises(ValueError, match="no attention function was seen"):
        projection_rows(model, anatomy(model).blocks, partial(model, torch.randn(2, 3, 8)))


def test_looking_leaves_no_trace() -> None:
    model = make("dropping_vit").train()
    model.register_buffer("count", torch.zeros(()))
    state, before = torch.get_rng_state(), {name: each.clone() for name, each in model.state_dict().items()}
    with undisturbed(model):
        model.eval()
        model.count += 1
        torch.randn(3)
    projection_rows(model, anatomy(model).blocks, partial(logits, model, "dropping_vit"))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
