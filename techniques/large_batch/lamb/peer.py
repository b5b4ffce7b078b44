"""Checks and timings of LAMB's kernels, beside apex's, timm's and bitsandbytes'."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.large_batch.lamb import kernel

LR, BETA1, BETA2, EPS, DECAY = 0.5, 0.9, 0.95, 1e-6, 0.1  # a large step, so that bfloat16 parameters show it
STEP = 3
CLIP = 0.75 / 1024  # as if a loss scale were divided out, too
RATES: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
NAMES = ("parameters", "gradients", "first_moments", "second_moments")


def reference(inputs: Inputs, factor: float) -> Inputs:
    """Runs Algorithm 2 in float64, of gradients times ``factor``; its direction is that of the moments as stored.

    The ratio is 1 of a norm that is 0 or not a number.
    """
    expected: Inputs = {"parameters": [], "first_moments": [], "second_moments": []}
    moment = inputs["first_moments"][0].dtype
    for p, g, m, v in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        m = BETA1 * m + (1 - BETA1) * factor * g
        v = BETA2 * v + (1 - BETA2) * (factor * g).square()
        if moment == torch.bfloat16:
            m, v = (tensor.to(moment).double() for tensor in (m, v))
        direction = m / (1 - BETA1**STEP) / ((v / (1 - BETA2**STEP)).sqrt() + EPS) + DECAY * p
        ratio = (p.norm() / direction.norm()).where((p.norm() > 0) & (direction.norm() > 0), 1.0)
        p = p - LR * ratio * direction
        for tensors, tensor in zip(expected.values(), (p, m, v)):
            tensors.append(tensor)
    return expected


def step(inputs: Inputs, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, first_moments, second_moments = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.lamb_step(
        parameters,
        gradients,
        first_moments,
        second_moments,
        tables,
        step=STEP,
        learning_rate=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=EPS,
        weight_decay=DECAY,
        seed=seed,
        **settings,
    )


def apex(inputs: Inputs) -> Callable[[], object]:
    from apex.optimizers import FusedLAMB

    return FusedLAMB(with_gradients(inputs), max_grad_norm=math.inf, **RATES).step


def timm(inputs: Inputs) -> Callable[[], object]:
    from timm.optim import Lamb

    return Lamb(with_gradients(inputs), max_grad_norm=None, foreach=True, **RATES).step


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import LAMB32bit

    return LAMB32bit(with_gradients(inputs), **RATES).step


PEERS: dict[str, Prepare] = {"apex": apex, "timm foreach": timm, "bitsandbytes": bitsandbytes}


def _bench(parameter: torch.dtype, moment: torch.dtype, scaled: bool = False, seed: int | None = None) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        inputs = random_lists(
            sizes,
            device,
            generator,
            parameters=parameter,
            gradients=parameter,
            first_moments=moment,
            second_moments=moment,
        )
        torch._foreach_abs_(inputs["second_moments"])  # a mean of squares
        return inputs

    return Bench(
        make=make,
        kernel=partial(step, scaled=scaled, seed=seed),
        reference=partial(reference, factor=CLIP if scaled else 1.0),
        # Half a unit for each rounding of the longest chain: some 40, through moments, norms and ratio to the
        # parameter; 4 to a moment. To bfloat16 parameters that chain is nothing.
        tolerance=20 if parameter == torch.float32 else 2,
        bytes_per_element=4 * parameter.itemsize + 6 * moment.itemsize,
        peers=PEERS,
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "bfloat16": _bench(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.float32, seed=1),
    "bfloat16_stochastic_scaled": _bench(torch.bfloat16, torch.float32, scaled=True, seed=1),
    "bfloat16_moments": _bench(torch.bfloat16, torch.bfloat16),
}
