"""Checks and timings of Lion's kernel, beside the Lions of lion-pytorch, bitsandbytes and timm.

Beside them torch's fused AdamW, which moves 28 bytes a float32 parameter for Lion's 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.optimizers.lion import kernel

RATES: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1}  # a large step, so that bfloat16 parameters show it
BETA1, BETA2 = 0.9, 0.99
CLIP = 0.75 / 8  # as if a loss scale were divided out, too
NAMES = ("parameters", "gradients", "momenta")


def reference(inputs: Inputs, factor: float) -> Inputs:
    """Runs Algorithm 2 in float64, of gradients times ``factor``."""
    parameters: list[Tensor] = []
    momenta: list[Tensor] = []
    for p, g, m in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        g = factor * g
        direction = (BETA1 * m + (1 - BETA1) * g).sign()
        parameters.append((1 - RATES["lr"] * RATES["weight_decay"]) * p - RATES["lr"] * direction)
        momenta.append(BETA2 * m + (1 - BETA2) * g)
    return {"parameters": parameters, "momenta": momenta}


def step(inputs: Inputs, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, momenta = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.lion_step(
        parameters, gradients, momenta, tables, beta1=BETA1, beta2=BETA2, seed=seed, **RATES, **settings
    )


def lion_pytorch(inputs: Inputs, **settings: Any) -> Callable[[], object]:
    from lion_pytorch import Lion

    return Lion(with_gradients(inputs), betas=(BETA1, BETA2), **RATES, **settings).step


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import Lion32bit

    return Lion32bit(with_gradients(inputs), betas=(BETA1, BETA2), **RATES).step


def timm(inputs: Inputs) -> Callable[[], object]:
    from timm.optim import Lion

    return Lion(with_gradients(inputs), betas=(BETA1, BETA2), foreach=True, **RATES).step


def adamw(inputs: Inputs) -> Callable[[], object]:
    return torch.optim.AdamW(with_gradients(inputs), fused=True, **RATES).step


PEERS: dict[str, Prepare] = {
    "lion-pytorch foreach": lambda inputs: lion_pytorch(inputs, use_triton=False),
    "lion-pytorch Triton": lambda inputs: lion_pytorch(inputs, use_triton=True),
    "bitsandbytes": bitsandbytes,
    "timm foreach": timm,
    "torch fused AdamW": adamw,
}


def _bench(parameter: torch.dtype, momentum: torch.dtype, scaled: bool = False, seed: int | None = None) -> Bench:
    factor = CLIP if scaled else 1.0

    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        inputs = random_lists(sizes, device, generator, parameters=parameter, gradients=parameter, momenta=momentum)
        for g, m in zip(inputs["gradients"], inputs["momenta"]):
            # The sign of a sum that cancels depends on its rounding: float64 could not judge it.
            direction = BETA1 * m.float() + (1 - BETA1) * factor * g.float()
            g.copy_(torch.where(direction.abs() < 1e-3, m.to(g.dtype), g))
        return inputs

    return Bench(
        make=make,
        kernel=partial(step, scaled=scaled, seed=seed),
        reference=partial(reference, factor=factor),
        tolerance=2,  # a sum of two rounded products
        bytes_per_element=3 * parameter.itemsize + 2 * momentum.itemsize,
        peers=PEERS if momentum == parameter else {},  # theirs keep the momentum in the parameter's dtype
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "bfloat16_momentum": _bench(torch.float32, torch.bfloat16),
    "bfloat16": _bench(torch.bfloat16, torch.bfloat16),
    "bfloat16_float32_momentum": _bench(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.float32, seed=1),
    "bfloat16_stochastic_scaled": _bench(torch.bfloat16, torch.float32, scaled=True, seed=1),
}
