"""Roles of parameters' dimensions, and narrower models that state their own sizes."""

from functools import partial

import pytest
import torch
from torch import nn

from suite.model.width import AXES, Axis, Role, layout, narrow
from tests.model.further_models import logits, make

WIDTH = Role("residual", 32)
READS = Role("residual", 32, read=True)


def layout_of(name: str, axes: tuple[Axis, ...] = AXES):
    model = make(name)
    return model, layout(model, partial(logits, model, name), axes)


def test_roles_of_gpt2():
    """Conv1D keeps its weight as in x out; what embeds also predicts, so that the norm before it is the head's part."""
    _, roles = layout_of("gpt2")
    block = "transformer.h.3"
    assert roles[f"{block}.attn.c_attn.weight"] == (READS, Role("heads", 4, lists=3, grain=8))
    assert roles[f"{block}.attn.c_attn.bias"] == (Role("heads", 4, lists=3, grain=8),)
    assert roles[f"{block}.attn.c_proj.weight"] == (Role("heads", 4, grain=8, read=True), WIDTH)
    assert roles[f"{block}.mlp.c_fc.weight"] == (READS, Role("units", 128))
    assert roles[f"{block}.mlp.c_proj.weight"] == (Role("units", 128, read=True), WIDTH)
    assert roles[f"{block}.ln_1.weight"] == (WIDTH,)
    assert roles["transformer.wte.weight"] == roles["transformer.wpe.weight"] == (None, WIDTH)
    assert roles["transformer.ln_f.weight"] == roles["transformer.ln_f.bias"] == (READS,)


def test_roles_of_projections_that_are_fused_head_by_head():
    _, roles = layout_of("bloom")
    assert roles["transformer.h.0.self_attention.query_key_value.weight"] == (Role("heads", 4, grain=24), READS)


def test_a_gate_and_what_it_gates_in_one_layer_are_two_lists_of_units():
    _, roles = layout_of("phi3", ("units",))
    assert roles["model.layers.0.mlp.gate_up_proj.weight"] == (Role("units", 64, lists=2), None)
    assert roles["model.layers.0.mlp.down_proj.weight"] == (None, Role("units", 64, read=True))
    assert not any(roles["model.layers.0.self_attn.qkv_proj.weight"])


def test_units_of_one_stack_need_no_single_stack():
    _, roles = layout_of("pvt", ("units",))
    assert {role.axis for each in roles.values() for role in each if role} == {"units"}


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "dropping_vit"])
def test_a_narrower_model_states_its_own_sizes_and_a_wider_one_what_it_was(name: str):
    model, roles = layout_of(name)
    before = [str(module) for module in model.modules()]
    values = {key: each.detach().clone() for key, each in model.named_parameters()}
    shared, kept = len(list(model.parameters())), logits(model.eval(), name)
    small = narrow(model, roles, dict.fromkeys(AXES, 2))
    assert len(list(model.parameters())) == shared  # what was tied is tied
    assert logits(model, name).shape == kept.shape
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.shape == (module.out_features, module.in_features)
        if isinstance(module, nn.LayerNorm):
            assert module.weight.shape == module.normalized_shape == (16,)
    small.widen(values)
    assert [str(module) for module in model.modules()] == before
    assert torch.equal(logits(model, name), kept)


def test_every_second_unit_is_kept_and_what_reads_them_grows_by_the_root():
    model, roles = layout_of("gpt2")
    table, first = model.transformer.wte.weight, model.transformer.h[0].mlp.c_fc.weight
    narrow(model, roles, dict.fromkeys(AXES, 2))
    assert torch.equal(model.transformer.wte.weight, table[:, ::2])
    torch.testing.assert_close(model.transformer.h[0].mlp.c_fc.weight, 2**0.5 * first[::2, ::2])


def test_a_number_that_does_not_divide_is_refused_with_those_that_do():
    model, roles = layout_of("gpt2")
    with pytest.raises(ValueError, match="has 4 heads, which 3 does not divide: use one of 1, 2, 4"):
        narrow(model, roles, {"heads": 3})
