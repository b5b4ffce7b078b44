"""A stack stays the one that it was when it was first seen, and its blocks take on what goes with their places."""

import copy

import pytest
import timm
from torch import nn

from suite.model.anatomy import anatomy
from tests.model.further_models import VIT, logits, make
from tests.model.transformer_models import build


def modules(stack_of: nn.Module) -> list[nn.Module]:
    return [block.module for block in anatomy(stack_of).blocks]


def test_the_main_stack_stays_so_when_it_is_the_smaller_one() -> None:
    """An auto-encoder's encoder at a quarter of its depth has fewer parameters than the decoder."""
    model = build("mae")
    blocks = modules(model)
    anatomy(model).set_blocks(blocks[:1])
    for seen in (model, copy.deepcopy(model), nn.ModuleDict({"module": model})):
        encoder, decoder = anatomy(seen).stacks
        sizes = [sum(p.numel() for p in stack.container.parameters()) for stack in (encoder, decoder)]
        assert sizes[0] < sizes[1]
        assert anatomy(seen).main.path == encoder.path
    anatomy(model).set_blocks(blocks)
    assert [stack.depth for stack in anatomy(model).stacks] == [4, 2]


def test_a_depth_of_one_is_not_taken_for_other_ones() -> None:
    model = build("bert")
    model.config.layers_of_something_else = 1
    model.config.first_layer = 0
    model.bert.encoder.layer[0].attention.first_layer = 0
    blocks = modules(model)
    anatomy(model).set_blocks(blocks[:1])
    anatomy(model).set_blocks([blocks[0], *(copy.deepcopy(blocks[0]) for _ in range(3))])
    assert (model.config.num_hidden_layers, model.config.layers_of_something_else) == (4, 1)
    assert [block.attention.first_layer for block in modules(model)] == [0] * 4
    indices = [vars(block.attention.self).get("layer_idx", number) for number, block in enumerate(modules(model))]
    assert indices == [0, 1, 2, 3]


def test_stochastic_depth_goes_with_the_place() -> None:
    model = make("dropping_vit")
    blocks = modules(model)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    anatomy(model).main.check_alike()
    anatomy(model).set_blocks(blocks[:1])
    anatomy(model).set_blocks([blocks[0], *(copy.deepcopy(blocks[0]) for _ in range(3))])
    assert [getattr(block.drop_path1, "drop_prob", 0.0) for block in modules(model)] == pytest.approx(rates)
    model.eval()
    assert not any(module.training for module in model.modules())
    logits(model, "dropping_vit")


@pytest.mark.parametrize(
    ("name", "difference"),
    [("swin", "shift_size"), ("t5", "relative_attention_bias"), ("gemma2", "sliding_window")],
)
def test_blocks_that_are_not_alike_have_no_copies(name: str, difference: str) -> None:
    with pytest.raises(ValueError, match=f"not all alike .*{difference}.*of one design"):
        anatomy(make(name)).main.check_alike()


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral", "beit", "pvt", "cait"])
def test_blocks_of_one_design_are_alike(name: str) -> None:
    anatomy(make(name)).main.check_alike()


def test_a_transformer_without_blocks_of_linear_layers_says_so() -> None:
    with pytest.raises(ValueError, match="no Transformer blocks in ConvNeXt"):
        anatomy(timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)))


def test_widths_of_a_model_are_those_of_its_blocks() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **VIT)
    assert {block.width for block in anatomy(model).blocks} == {32}
