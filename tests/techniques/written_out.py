"""A small Vision Transformer in float64 to write a paper's equations out on, and training beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

WIDTH, HEADS, DEPTH = 24, 2, 3
SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}


def vit(**changes: Any) -> VisionTransformer:
    """The same at every call."""
    torch.manual_seed(0)
    return VisionTransformer(**SIZES, class_token=False, global_pool="avg", **changes).double().eval()


def images(step: int = 0) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def trial_run() -> Any:
    """As much of a run as the surgery on a model asks for."""
    return SimpleNamespace(trial=lambda model: model(images()), generator=torch.Generator().manual_seed(1))


def attention(block: nn.Module, x: Tensor) -> Tensor:
    """What a block's attention makes of x [batch, tokens, width], by torch's own."""
    qkv, out = block.attn.qkv, block.attn.proj
    weights = qkv.weight, qkv.bias, None, None, False, 0.0, out.weight, out.bias
    return F.multi_head_attention_forward(*[x.transpose(0, 1)] * 3, WIDTH, HEADS, *weights)[0].transpose(0, 1)


def mlp(block: nn.Module, x: Tensor) -> Tensor:
    return block.mlp.fc2(F.gelu(block.mlp.fc1(x)))


def assert_they_train_alike(
    ours: nn.Module, own: Iterable[Tensor], equation: Callable[[Tensor], Tensor], theirs: Iterable[Tensor]
) -> None:
    """Their outputs are equal before each of eight updates of these parameters by AdamW."""
    optimizers = [torch.optim.AdamW(parameters, lr=1e-2) for parameters in (own, theirs)]
    for step in range(8):
        outputs = ours(images(step)), equation(images(step))
        torch.testing.assert_close(*outputs, rtol=1e-7, atol=1e-9)
        for optimizer, output in zip(optimizers, outputs, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(output, torch.arange(4)).backward()
            optimizer.step()
    assert outputs[0].abs().max() > 0.1
