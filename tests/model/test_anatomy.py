"""Blocks and their parts are found in every family; surgery keeps the model a model."""

import copy
from collections.abc import Callable

import pytest
import timm
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suite.model.anatomy import (
    AroundLinear,
    NoBlocks,
    PartOfModel,
    anatomy,
    in_features,
    is_linear,
    is_transposed,
    out_features,
    weight_matrix,
)
from suite.model.held import hold
from tests.model.transformer_models import BUILDERS, SIZES, build, gradients, loss

# family: stack, attention output, MLP output (of the first block), head
EXPECTED = {
    "bert": ("bert.encoder.layer", "attention.output.dense", "output.dense", ["cls.predictions.decoder"]),
    "gpt2": ("transformer.h", "attn.c_proj", "mlp.c_proj", ["lm_head"]),
    "llama": ("model.layers", "self_attn.o_proj", "mlp.down_proj", ["lm_head"]),
    "deberta": ("deberta.encoder.layer", "attention.output.dense", "output.dense", ["cls.predictions.decoder"]),
    "t5": ("encoder.block", "layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo", ["lm_head"]),
    "mae": ("vit.layers", "attention.o_proj", "mlp.fc2", ["decoder.decoder_pred"]),
    "vit": ("blocks", "attn.proj", "mlp.fc2", ["head"]),
    "deit": ("blocks", "attn.proj", "mlp.fc2", ["head", "head_dist"]),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_parts_are_found(name: str) -> None:
    found = anatomy(build(name))
    stack, attention_output, mlp_output, head = EXPECTED[name]
    first = found.blocks[0]

    assert (found.main.path, found.depth, found.width, found.heads) == (stack, 4, 32, 4)
    assert first.attention_output is not None
    assert first.mlp_output is not None
    assert first.attention_output.path == f"{stack}.0.{attention_output}"
    assert first.mlp_output.path == f"{stack}.0.{mlp_output}"
    assert [part.path for part in found.head] == head
    assert set(first.projections) == ({"qkv"} if name in ("gpt2", "vit", "deit") else {"query", "key", "value"})
    assert len(first.norms) == 2
    for block in found.every_block:
        for path, module in (*block.linears, *block.norms, *block.branches, *block.projections.values()):
            assert found.model.get_submodule(path) is module
            assert path.startswith(block.path + ".")
        assert {path for path, _ in block.linears} == {
            f"{block.path}.{path}" for path, module in block.module.named_modules() if is_linear(module)
        }
        assert all(part.path.startswith(block.attention.path) for part in block.projections.values())


def test_content_projections_win_over_positional_ones() -> None:
    projections = anatomy(build("deberta")).blocks[0].projections
    assert [part.path.rpartition(".")[2] for part in projections.values()] == ["query_proj", "key_proj", "value_proj"]


def test_a_layer_called_by_all_three_names_is_fused() -> None:
    config = hf.GPTNeoXConfig(vocab_size=64, **SIZES)
    assert set(anatomy(hf.GPTNeoXForCausalLM(config)).blocks[0].projections) == {"qkv"}


def test_the_innermost_list_holds_the_blocks() -> None:
    """Swin's stages are modules of one class with attention inside, too."""
    small = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 2)}
    found = anatomy(timm.create_model("swin_tiny_patch4_window7_224", **small))
    assert [(stack.path, stack.width) for stack in found.stacks] == [("layers.0.blocks", 16), ("layers.1.blocks", 32)]


def test_encoder_and_decoder_are_two_stacks() -> None:
    for name, paths in {
        "t5": ["encoder.block", "decoder.block"],
        "mae": ["vit.layers", "decoder.decoder_layers"],
    }.items():
        found = anatomy(build(name))
        assert [stack.path for stack in found.stacks] == paths
        assert [stack.depth for stack in found.stacks] == [4, 2]
        assert len(found.every_block) == 6
    assert found.stacks[1].width == 24
    crossing = anatomy(build("t5")).stacks[1].blocks[0]
    assert len(crossing.branches) == 3  # self-attention, cross-attention, MLP
    assert crossing.attention.path.endswith("SelfAttention")


def convolutional() -> nn.Module:
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2))


def perceptron() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))


@pytest.mark.parametrize("model", [convolutional, perceptron, lambda: nn.Linear(2, 2)])
def test_no_blocks_is_a_clear_error(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(NoBlocks, match=r"which has no attention.*use a Hugging Face or timm"):
        anatomy(model())


def jamba() -> nn.Module:
    """Two layers of a state space, each before one of attention; the second of each pair has experts."""
    config = hf.JambaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )
    return hf.JambaForCausalLM(config)


def test_a_hybrids_layers_are_blocks_of_one_stack_and_some_attend() -> None:
    found = anatomy(jamba())
    assert (found.main.path, found.depth, found.width, found.heads) == ("model.layers", 4, 32, 4)
    assert [block.attends for block in found.blocks] == [False, True, False, True]
    state_space, attention = found.blocks[:2]
    assert attention.attention_output is not None and attention.attention_output.path.endswith("self_attn.o_proj")
    assert state_space.attention_output is None and not state_space.projections
    paths = {path.removeprefix("model.layers.0.") for path, _ in state_space.linears}
    assert {"mamba.in_proj", "mamba.out_proj"} <= paths
    assert "mamba.dt_proj" not in paths, "its weights are used and it is never called"


def test_attention_is_known_by_its_class_where_no_path_says_it() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mixer, self.mlp = nn.LayerNorm(8), Attention(), nn.Linear(8, 8)

    first = anatomy(nn.Sequential(nn.ModuleList([Layer(), Layer()]))).blocks[0]
    assert first.attention.path == "0.0.mixer" and first.attention_output is not None
    assert [path for path, _ in first.attention_linears] == ["0.0.mixer.qkv", "0.0.mixer.proj"]
    assert [path for path, _ in first.mlp_linears] == ["0.0.mlp"]
    with pytest.raises(
        NoBlocks, match=r"^cannot tell the blocks of Sequential, which has attention at 0 \(Attention\)"
    ):
        anatomy(nn.Sequential(Attention(), nn.Conv1d(8, 8, 1)))


def test_weight_matrix_of_a_conv1d_writes_through() -> None:
    part = anatomy(build("gpt2")).blocks[0].projections["qkv"].module
    assert is_transposed(part)
    assert (out_features(part), in_features(part)) == weight_matrix(part).shape == (96, 32)
    x = torch.randn(5, 32)
    assert torch.allclose(part(x), x @ weight_matrix(part).T + part.bias, atol=1e-6)
    with torch.no_grad():
        weight_matrix(part).zero_()
    assert not part.weight.any()


@pytest.mark.parametrize("name", BUILDERS)
def test_wrapping_every_linear_changes_nothing(name: str) -> None:
    """Wrapped twice, as two stacked techniques would: the second still sees the same linear layers."""
    model = build(name)
    before, expected = gradients(model, name)
    found = anatomy(model)
    paths = [part.path for part in found.linears]
    for _ in range(2):
        for path, module in found.linears:
            found.replace(path, AroundLinear(module))
        assert [part.path for part in found.linears] == paths
    after, actual = gradients(model, name)
    assert all(isinstance(part.module, AroundLinear) for part in found.linears)
    assert torch.equal(before, after)
    assert len(actual) == len(expected)
    for key, gradient in actual.items():
        assert torch.equal(gradient, expected[key.replace(".linear.linear.", ".")])


def test_a_wrapper_survives_copying() -> None:
    wrapped = AroundLinear(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    assert torch.equal(copy.deepcopy(wrapped)(x), wrapped(x))
    with pytest.raises(AttributeError, match="no_such"):
        _ = wrapped.no_such


def test_replacing_what_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match="fresh anatomy"):
        anatomy(build("vit")).replace("blocks.0.attn.nothing", nn.Identity())


@pytest.mark.parametrize("name", BUILDERS)
def test_depth_can_grow_and_shrink(name: str) -> None:
    model = build(name).eval()
    found = anatomy(model)
    original = loss(model, name)
    old = [block.module for block in found.blocks]
    container = found.main.container

    found.set_blocks([*old, *map(copy.deepcopy, old)])
    assert found.depth == 8
    assert found.main.container is container
    grown, gradient = gradients(model, name)
    assert not torch.equal(grown, original)
    assert all(any(key.startswith(f"{block.path}.") for key in gradient) for block in found.blocks)
    for number, block in enumerate(found.blocks):
        indices = [vars(module)["layer_idx"] for module in block.module.modules() if "layer_idx" in vars(module)]
        assert indices in ([], [number] * len(indices))

    found.set_blocks(old)
    assert torch.equal(loss(model, name), original)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
def test_dropped_blocks_are_not_run(kept: list[int]) -> None:
    model = build("llama").eval()  # its forward reads the depth from the configuration
    found = anatomy(model)
    old = [block.module for block in found.blocks]
    ran = []
    for number, block in enumerate(old):
        block.register_forward_hook(lambda *_, number=number: ran.append(number))
    found.set_blocks([old[number] for number in kept])
    loss(model, "llama")
    assert ran == kept
    assert model.config.num_hidden_layers == len(kept)


def test_only_the_changed_stack_gets_another_depth() -> None:
    model = build("mae")
    found = anatomy(model)
    found.set_blocks([found.blocks[0].module, found.blocks[1].module])  # now as deep as the decoder
    assert (model.config.num_hidden_layers, model.config.decoder_num_hidden_layers) == (2, 2)
    decoder = found.stacks[1]
    found.set_blocks([decoder.blocks[0].module], decoder)
    assert (model.config.num_hidden_layers, model.config.decoder_num_hidden_layers) == (2, 1)


def test_mixed_layers_keep_their_depth() -> None:
    """Whether a new layer attends to all or to a window is not for us to guess; nothing changes on refusal."""
    mixed = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 4}
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=64, num_key_value_heads=2, **SIZES, **mixed))
    found, before = anatomy(model), model.config.to_dict()
    with pytest.raises(ValueError, match="mixed layers"):
        found.set_blocks([found.blocks[0].module])
    assert (model.config.to_dict(), found.depth) == (before, 4)


def test_no_blocks_to_set_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        anatomy(build("vit")).set_blocks([])


def test_of_a_model_in_parts_the_blocks_that_are_there_are_found_stage_by_stage() -> None:
    model = build("gpt2")
    whole = [block.path for block in anatomy(model).blocks]
    for block, stage in zip(anatomy(model).blocks, (0, None, 2, 2), strict=True):
        hold(block.module, stage)
    for parameters in [module._parameters for module in anatomy(model).stacks[0].container[1].modules()]:
        parameters.clear()
    parts = anatomy(model)
    assert parts.is_part and not anatomy(build("gpt2")).is_part
    assert [[block.path for block in stack.blocks] for stack in parts.stacks] == [[whole[0]], whole[2:]]
    assert [block.index for block in parts.every_block] == [0, 2, 3]
    with pytest.raises(PartOfModel, match="all blocks of the model together"):
        _ = parts.blocks
