"""The update alone, of every technique that brings an optimizer, against torch's fused AdamW: on a GPU its kernel, on a
CPU its path there. On the parameters of a small Transformer, over the size of caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.entries.spelling import build
from suite.loop.technique import Unavailable, overrides
from suite.meters.counters import count_step
from suite.meters.state import state_bytes
from suite.record.job import BASELINE
from suite.record.schema import Counters

ROUNDS = 20
WARMUP = 3
WIDTH, LAYERS, VOCABULARY = 256, 6, 8192  # 7 million parameters


@cache
def optimizers() -> list[str]:
    """Techniques that fill the optimizer's slot."""
    return [entry.id for entry in catalogue().values() if overrides(entry.technique, "optimizer")]


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH), layers])


@pytest.mark.parametrize("stack", ["torch", *optimizers()])
def test_update(
    benchmark: Any,
    stack: str,
    device: str,
    counted: Callable[[Counters], Mapping[str, Any]],
    with_floor: Callable[..., Mapping[str, Any]],
) -> None:
    baseline = baselines()[catalogue()[stack].card.baselines[0] if stack != "torch" else next(iter(baselines()))]
    technique = build(BASELINE if stack == "torch" else stack)  # whose optimizer is torch's fused AdamW
    recipe = technique.recipe(baseline.recipe("nano", "modern", "pretrain"))
    if recipe.world_size > 1:
        pytest.skip(f"{stack} needs {recipe.world_size} ranks, and this is one process; see: leantrain compare {stack}")
    torch.manual_seed(0)
    model = transformer().to(device)
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    groups = [{"params": list(model.parameters()), "weight_decay": recipe.weight_decay}]
    try:
        optimizer = technique.optimizer(groups, recipe)
        optimizer.step()  # makes the state
    except Unavailable as error:
        pytest.skip(f"{stack}: {error}")

    def step() -> None:
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    benchmark.group = f"update of {sum(p.numel() for p in model.parameters()):,} parameters on {device}"
    benchmark.pedantic(step, rounds=ROUNDS, warmup_rounds=WARMUP)
    counters = count_step(step, model, optimizer, None)
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    # parameters and state are read and written, gradients are read
    moved_bytes = 2 * (parameter_bytes + state_bytes(optimizer)) + parameter_bytes
    benchmark.extra_info |= {"stack": stack, "device": device, **counted(counters)}
    benchmark.extra_info["flops"] = "unavailable: the counter knows matrix products, an update is elementwise"
    benchmark.extra_info |= with_floor(benchmark, device, moved_bytes)
