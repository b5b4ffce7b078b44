"""How Adam's kernel is checked and timed, with decay in the gradient, and against whom: torch, bitsandbytes, apex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernel_report import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.optimizers.adam import kernel

LR, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.95, 1e-8, 0.1  # a large step, so that bfloat16 parameters show it
STEP = 3
SCALE, CLIP = 1024.0, 0.75
RATES: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
NAMES = ("parameters", "gradients", "first_moments", "second_moments")


def reference(inputs: Inputs, factor: float) -> Inputs:
    """Algorithm 1 in float64, of gradients times ``factor`` plus the decay."""
    expected: Inputs = {"parameters": [], "first_moments": [], "second_moments": []}
    for p, g, m, v in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        g = factor * g + DECAY * p
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g.square()
        deviation = (v / (1 - BETA2**STEP)).sqrt() + EPS
        p = p - LR * m / (1 - BETA1**STEP) / deviation
        for tensors, tensor in zip(expected.values(), (p, m, v)):
            tensors.append(tensor)
    return expected


def step(inputs: Inputs, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, first_moments, second_moments = (inputs[name] for name in NAMES)
    scalars = ("gradient_scale", SCALE), ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.adam_step(
        parameters, gradients, first_moments, second_moments, tables,
        step=STEP, lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY, seed=seed, **settings,
    )  # fmt: skip


def torch_adam(inputs: Inputs, **settings: Any) -> Callable[[], object]:
    return torch.optim.Adam(with_gradients(inputs), **RATES, **settings).step


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import Adam32bit

    return Adam32bit(with_gradients(inputs), **RATES).step


def apex(inputs: Inputs) -> Callable[[], object]:
    from apex.optimizers import FusedAdam

    return FusedAdam(with_gradients(inputs), adam_w_mode=False, **RATES).step


TORCH: dict[str, Prepare] = {
    "torch fused": partial(torch_adam, fused=True),
    "torch foreach": partial(torch_adam, foreach=True),
}
FLOAT32_MOMENTS: dict[str, Prepare] = {"bitsandbytes": bitsandbytes, "apex": apex}


def _bench(parameter: torch.dtype, moment: torch.dtype, scaled: bool = False, seed: int | None = None) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        inputs = random_lists(
            sizes, device, generator,
            parameters=parameter, gradients=parameter, first_moments=moment, second_moments=moment,
        )  # fmt: skip
        torch._foreach_abs_(inputs["second_moments"])  # a mean of squares
        return inputs

    return Bench(
        make=make,
        kernel=partial(step, scaled=scaled, seed=seed),
        reference=partial(reference, factor=CLIP / SCALE if scaled else 1.0),
        # Half a unit for each rounding of the longest chain: 21 to the parameter, scaled; 7 to a moment. To bfloat16
        # parameters that chain is nothing.
        tolerance=11 if parameter == torch.float32 else 4,
        bytes_per_element=3 * parameter.itemsize + 4 * moment.itemsize,
        # torch keeps moments in the parameter's dtype, the others in float32
        peers=(TORCH if moment == parameter else {}) | (FLOAT32_MOMENTS if moment == torch.float32 else {}),
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "bfloat16": _bench(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.float32, seed=1),
    "bfloat16_moments": _bench(torch.bfloat16, torch.bfloat16),
}
