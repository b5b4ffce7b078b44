"""SkipInit against its formula: training, how a stream's variance grows over depth, and what is refused."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from suite.model.anatomy import anatomy
from techniques.initialization.skipinit.technique import SkipInit, add_multipliers
from techniques.shared.residual import norms, remove_norms, scaled_branches
from tests.model.further_models import further_run

SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 2}
STEPS = 8


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**SIZES, class_token=False, global_pool="avg").double().eval()


def images(step: int = 0) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


@pytest.mark.parametrize("initial", [0.0, 0.25])
def test_trains_as_the_formula_does(initial: float) -> None:
    """x + a F(x) with a number for each branch; attention is torch's own."""
    run: Any = SimpleNamespace(trial=lambda model: model(images()))
    ours, plain = SkipInit(initial).model(vit(), run).double(), vit()
    numbers = [nn.Parameter(torch.full((1,), initial, dtype=torch.float64)) for _ in range(6)]
    theirs = [*numbers, *(p for name, p in plain.named_parameters() if "norm" not in name)]

    def formula(pictures: Tensor) -> Tensor:
        x = plain.patch_embed(pictures) + plain.pos_embed
        for block, a, b in zip(plain.blocks, numbers[::2], numbers[1::2], strict=True):
            qkv, out = block.attn.qkv, block.attn.proj
            attended, _ = F.multi_head_attention_forward(
                *[x.transpose(0, 1)] * 3, 24, 2, qkv.weight, qkv.bias, None, None, False, 0.0, out.weight, out.bias
            )
            x = x + a * attended.transpose(0, 1)
            x = x + b * block.mlp.fc2(F.gelu(block.mlp.fc1(x)))
        return plain.head(x.mean(1))

    optimizers = [torch.optim.AdamW(parameters, lr=1e-2) for parameters in (ours.parameters(), theirs)]
    for step in range(STEPS):
        outputs = ours(images(step)), formula(images(step))
        torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
        for optimizer, output in zip(optimizers, outputs):
            optimizer.zero_grad()
            F.cross_entropy(output, torch.arange(4)).backward()
            optimizer.step()
    ends = [end.module.scale for block in anatomy(ours).blocks for end in block.branches]
    torch.testing.assert_close(ends, [each.detach() for each in numbers], rtol=1e-8, atol=1e-10, check_dtype=False)


class Block(nn.Module):
    """x + G(x) + H(x), and both keep the variance of what they get."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        for layer in (self.attn, self.mlp):
            nn.init.orthogonal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


@pytest.mark.parametrize(("blocks", "start"), [(4, 0.0), (4, 1.0), (4, None), (16, 0.0), (16, None), (64, None)])
def test_the_variance_doubles_in_each_branch_unless_the_number_is_small(blocks: int, start: float | None) -> None:
    """2^L with a = 1, (1 + 1/L)^L < e with a = 1 / sqrt(L), 1 with a = 0."""
    torch.manual_seed(0)
    branches = 2 * blocks
    initial = branches**-0.5 if start is None else start
    model = nn.Sequential(*(Block(256) for _ in range(blocks)))
    parts = anatomy(nn.ModuleDict({"blocks": model}))
    add_multipliers(parts, [block.branches for block in parts.blocks], initial)
    x = torch.randn(64, 256)
    with torch.no_grad():
        growth = (model(x).var() / x.var()).item()
    assert growth == pytest.approx((1 + initial**2) ** branches, rel=0.1)
    assert start is not None or growth < math.e


@given(st.floats().filter(lambda value: not 0 <= value <= 1))
def test_a_multiplier_outside_of_0_to_1_is_refused(initial: float) -> None:
    with pytest.raises(ValueError, match="at most 1 / sqrt"):
        SkipInit(initial)


@pytest.mark.parametrize("name", ["t5", "gemma2", "mixtral", "swinv2", "gptj"])
def test_trains_models_of_users(name: str) -> None:
    run = further_run(name, SkipInit())
    assert not norms(run.anatomy)
    scales = [each.scale for each in scaled_branches(run.model).values()]
    assert len({id(each) for each in scales}) == len(scales)
    run.train(2)
    assert all(each.abs() > 0 for each in scales)


def test_a_model_with_a_scale_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="learned scale already"):
        further_run("cait", SkipInit())


def test_without_norms_and_with_numbers_of_1_the_model_is_the_plain_one_without_norms() -> None:
    run: Any = SimpleNamespace(trial=lambda model: model(images()))
    plain = vit()
    remove_norms(anatomy(plain))
    with torch.no_grad():
        torch.testing.assert_close(SkipInit(1.0).model(vit(), run).double()(images()), plain(images()))
