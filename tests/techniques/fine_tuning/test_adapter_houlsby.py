"""Adapters against their formula written out on torch's own attention, and the counts of their paper."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from suite.loop.data import generator
from suite.loop.run import Run
from suite.measure.at_scale.weightless import weightless
from suite.model.anatomy import anatomy
from suite.model.branches import branch_ends
from techniques.fine_tuning.adapter_houlsby.technique import Adapters, adapted, adapters
from tests.model.further_models import further_run
from tests.runs import new_run

WIDTH, BOTTLENECK = 24, 4
SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": WIDTH, "depth": 2, "num_heads": 2}


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**SIZES, class_token=False, global_pool="avg").double().eval()


def images(step: int) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=generator(step), dtype=torch.float64)


def bottleneck(h: Tensor, weights: dict[str, Tensor]) -> Tensor:
    u = h @ weights["down"].T + weights["down_bias"]
    gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
    return h + gelu @ weights["up"].T + weights["up_bias"]


def equation(plain: VisionTransformer, weights: list[dict[str, Tensor]], pictures: Tensor) -> Tensor:
    """Figure 2 in a pre-norm block, with a plain model's weights; attention is torch's own."""
    x = plain.patch_embed(pictures) + plain.pos_embed
    for index, block in enumerate(plain.blocks):
        qkv, out = block.attn.qkv, block.attn.proj
        attended, _ = F.multi_head_attention_forward(
            *[block.norm1(x).transpose(0, 1)] * 3,
            WIDTH,
            2,
            qkv.weight,
            qkv.bias,
            None,
            None,
            False,
            0.0,
            out.weight,
            out.bias,
        )
        x = x + bottleneck(attended.transpose(0, 1), weights[2 * index])
        x = x + bottleneck(block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x)))), weights[2 * index + 1])
    return plain.head(plain.fc_norm(x.mean(1)))


def test_trains_as_the_equation_does() -> None:
    run: Any = SimpleNamespace(trial=lambda model: model(images(0)), generator=generator(1))
    ours, plain = Adapters(bottleneck=BOTTLENECK).model(vit(), run), vit()
    weights = [
        {name: each.detach().clone().requires_grad_() for name, each in adapter.named_parameters(recurse=False)}
        for adapter in adapters(ours).values()
    ]
    assert len(weights) == 4
    own = [each for each in ours.parameters() if each.requires_grad]
    theirs = [each for one in weights for each in one.values()]
    theirs += [each for name, each in plain.named_parameters() if "norm" in name or name.startswith("head")]
    assert sum(each.numel() for each in own) == sum(each.numel() for each in theirs)
    optimizers = [torch.optim.AdamW(parameters, lr=1e-2) for parameters in (own, theirs)]
    for step in range(6):
        outputs = ours(images(step)), equation(plain, weights, images(step))
        torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
        for optimizer, output in zip(optimizers, outputs, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(output, torch.arange(4)).backward()
            optimizer.step()
    for adapter, one in zip(adapters(ours).values(), weights, strict=True):
        torch.testing.assert_close(adapter.up, one["up"], rtol=1e-7, atol=1e-9)
        assert adapter.up.abs().max() > 0.01


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(2, 20), st.integers(1, 8))
def test_the_function_in_float64(batch: int, tokens: int, width: int, inner: int) -> None:
    random = generator(width)
    shapes = {
        "h": (batch, tokens, width),
        "down": (inner, width),
        "down_bias": (inner,),
        "up": (width, inner),
        "up_bias": (width,),
    }
    values = {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}
    torch.testing.assert_close(adapted(**values), bottleneck(values.pop("h"), values), rtol=1e-12, atol=1e-12)


def adapting(baseline: str, steps: int = 4, **settings: Any) -> Run:
    stack = "adapter_houlsby" + ("".join(f":{key}={value}" for key, value in settings.items()))
    return new_run(baseline, stack, size="pico", recipe="classic", task="adapt", steps=steps)


@pytest.mark.parametrize(("size", "numbers", "share"), [(8, 0.84e6, 0.25), (64, 6.34e6, 1.89), (256, 25.24e6, 7.53)])
def test_numbers_at_the_papers_size(size: int, numbers: float, share: float) -> None:
    """Of BERT-large's 335 million, with the layer norms of the blocks 98304 more: 1.92 % at a bottleneck of 64."""
    with weightless():
        config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        network = BertForMaskedLM(config)
        whole = sum(each.numel() for each in network.bert.parameters()) + 1024 * 1025  # the pooler
        tokens = torch.zeros(1, 4, dtype=torch.int64)
        run: Any = SimpleNamespace(trial=lambda model: model(tokens), generator=generator(0))
        Adapters(bottleneck=size).model(network, run)
        own = sum(each.numel() for one in adapters(network).values() for each in one.parameters(recurse=False))
    assert own == 24 * 2 * (2 * size * 1024 + size + 1024)
    assert own == pytest.approx(numbers, rel=0.01)
    assert round(100 * own / whole, 2) == share


@pytest.mark.parametrize("name", ["t5", "gptj", "mixtral", "pvt"])
def test_trains_models_of_users(name: str) -> None:
    """With three branches a block, parallel branches, a mixture of experts, widths that differ between stacks."""
    run = further_run(name, Adapters(bottleneck=4))
    ends = branch_ends(run.model, anatomy(run.model).every_block, partial(run.trial, run.model))
    assert len(adapters(run.model)) == sum(map(len, ends))
    run.train(2)
    assert all(each.up_bias.any() for each in adapters(run.model).values())


def test_a_bottleneck_as_wide_as_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="set bottleneck to 8 or less"):
        adapting("bert", bottleneck=64)


def test_a_model_with_scaled_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="learned scale already"):
        further_run("deit3", Adapters(bottleneck=4))
