"""Residual streams lose all their norms, wherever a model has them, and nothing else."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suite.model.anatomy import anatomy
from suite.model.branches import branch_ends
from techniques.shared.residual import EnlargedTable, ScaledBranch, norms, remove_norms, scaled_branches
from tests.model import transformer_models
from tests.model.further_models import FURTHER, logits, make
from tests.runs import new_run

NORMS = {
    "gpt2": ["transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.ln_f"],
    "gpt_neox": ["input_layernorm", "post_attention_layernorm", "gpt_neox.final_layer_norm"],
    "albert": ["full_layer_layer_norm", "attention.LayerNorm"],
    "t5": ["layer.0.layer_norm", "encoder.final_layer_norm", "decoder.final_layer_norm"],
    "gemma2": ["post_feedforward_layernorm", "model.norm"],
    "swin": ["norm1", "norm2", "norm"],
}


@pytest.mark.parametrize("name", NORMS)
def test_the_norms_of_blocks_and_those_before_and_behind_them(name: str) -> None:
    paths = [norm.path for norm in norms(anatomy(make(name)))]
    assert all(any(path.endswith(expected) for path in paths) for expected in NORMS[name])
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(("deviation", "factor"), [(0.01, 8.0), (1 / 8, 8.0), (0.5, 2.0), (2.0, 0.5)])
def test_tables_are_enlarged_by_the_root_of_the_width_or_to_unit_size(deviation: float, factor: float) -> None:
    table = nn.Embedding(5000, 64)
    nn.init.normal_(table.weight, std=deviation)
    tokens = torch.arange(6).view(2, 3)
    torch.testing.assert_close(EnlargedTable(table)(tokens), table(tokens) * factor, rtol=1e-2, atol=0)


def test_a_head_that_shares_the_table_sees_it_as_it_is() -> None:
    run = new_run("gpt", size="pico")
    shared = run.anatomy.head[0].module.weight
    remove_norms(run.anatomy)
    assert run.anatomy.head[0].module.weight is shared is run.anatomy.embeddings[0].module.weight


def test_the_norms_of_queries_and_keys_stay() -> None:
    model = transformer_models.llama()
    layer = anatomy(model).blocks[0].attention.module
    layer.q_norm = nn.RMSNorm(8)
    remove_norms(anatomy(model))
    assert isinstance(layer.q_norm, nn.RMSNorm)


@pytest.mark.parametrize("name", sorted(set(FURTHER) - {"beit", "eva02", "deit3", "cait", "xcit", "dropping_vit"}))
def test_without_norms_every_branch_ends_where_a_scale_can_stand_and_at_0_blocks_are_the_identity(name: str) -> None:
    """Also where norms stood behind the branches (Gemma 2, Swin 2)."""
    model = make(name).eval()
    parts = anatomy(model)
    remove_norms(parts)
    ends = branch_ends(model, parts.every_block, partial(logits, model, name))
    zero = nn.Parameter(torch.zeros(1))
    for end in (end for branches in ends for end in branches):
        parts.replace(end.path, ScaledBranch(end.module, zero))
    passed = []
    for block in parts.every_block:
        block.module.register_forward_hook(lambda _, args, output: passed.append((args, output)), with_kwargs=False)
    with torch.no_grad():
        logits(model, name)
    assert passed
    assert len(scaled_branches(model)) == sum(map(len, ends))
    for args, output in passed:
        if args:
            assert torch.equal(output[0] if isinstance(output, tuple) else output, args[0])


@settings(max_examples=30, deadline=None)
@given(st.floats(-4, 4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_scaled_branch_is_the_scaled_product_bias_included(scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(5, 3)
    branch = ScaledBranch(linear, nn.Parameter(torch.tensor([scale])))
    x = torch.randn(2, 5, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = branch(x)
        expected = linear(x)
    assert output.dtype == dtype
    torch.testing.assert_close(output, expected * torch.tensor(scale).to(dtype), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(output.float().sum(), branch.scale)
    torch.testing.assert_close(gradient, expected.float().sum().view(1), rtol=2e-2, atol=2e-2)
