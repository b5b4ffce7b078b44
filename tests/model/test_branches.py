"""Branches end where a scale acts once: beside names, what a block computes decides."""

from functools import partial

import pytest

from suite.model.anatomy import anatomy
from suite.model.branches import branch_ends
from tests.model.further_models import logits, make

ENDS = {
    "gpt_neox": ["attention.dense", "mlp.dense_4h_to_h"],
    "gptj": ["attn.out_proj", "mlp.fc_out"],
    "mixtral": ["self_attn.o_proj", "mlp"],  # all experts, whatever the router chooses
    "t5": ["layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"],
    "swin": ["attn.proj", "mlp.fc2"],
    "albert": ["attention.dense", "ffn_output"],
}
REFUSED = {
    "deit3": r"blocks\.0 have a learned scale already \(ls1\.gamma\)",
    "beit": r"learned scale already \(gamma_1\)",
    "cait": r"learned scale already \(gamma_1\)",
    "xcit": r"learned scale already \(gamma1\)",
    "swinv2": r"learned scale already \(norm1\.weight\)",  # its norms stand behind the branches
    "gemma2": r"a norm follows model\.layers\.0\.self_attn\.o_proj",
}


@pytest.mark.parametrize("name", ENDS)
def test_every_branch_ends_once(name: str) -> None:
    model = make(name)
    first = anatomy(model).every_block[0]
    ends = branch_ends(model, [first], partial(logits, model, name))[0]
    assert [end.path for end in ends] == [f"{first.path}.{path}" for path in ENDS[name]]
    assert all(end.module is model.get_submodule(end.path) for end in ends)


def test_a_decoder_has_three() -> None:
    model = make("t5")
    crossing = anatomy(model).stacks[1].blocks
    assert [len(ends) for ends in branch_ends(model, crossing, partial(logits, model, "t5"))] == [3] * 4


@pytest.mark.parametrize("name", REFUSED)
def test_a_second_scale_and_one_that_a_norm_undoes_are_refused(name: str) -> None:
    model = make(name)
    with pytest.raises(ValueError, match=REFUSED[name]):
        branch_ends(model, anatomy(model).every_block, partial(logits, model, name))


def test_the_width_is_that_of_the_stream_and_not_of_a_position_bias() -> None:
    assert [stack.width for stack in anatomy(make("swinv2")).stacks] == [16, 32]
