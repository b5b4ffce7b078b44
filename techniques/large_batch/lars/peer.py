"""Checks and timings of LARS's kernels, beside timm's, bitsandbytes' and apex's (LARC around torch's SGD)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.large_batch.lars import kernel

LR, MOMENTUM, DECAY, COEFFICIENT = 1.0, 0.9, 0.1, 0.5  # a large step, so that bfloat16 parameters show it
CLIP = 0.75 / 1024  # as if a loss scale were divided out, too
NAMES = ("parameters", "gradients", "momenta")


def reference(inputs: Inputs, factor: float, adapt: bool) -> Inputs:
    """Runs Algorithm 1 in float64, of gradients times ``factor``; the ratio is 1 of a norm that is 0 or not a
    number."""
    expected: Inputs = {"parameters": [], "momenta": []}
    for p, g, v in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        g = factor * g
        ratio = COEFFICIENT * p.norm() / (g.norm() + DECAY * p.norm())
        ratio = ratio.where((p.norm() > 0) & (g.norm() > 0) & adapt, 1.0)
        v = MOMENTUM * v + LR * ratio * (g + DECAY * p)
        expected["parameters"].append(p - v)
        expected["momenta"].append(v)
    return expected


def step(inputs: Inputs, scaled: bool, seed: int | None, adapt: bool) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, momenta = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.lars_step(
        parameters,
        gradients,
        momenta,
        tables,
        learning_rate=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        trust_coefficient=COEFFICIENT,
        adapt=adapt,
        seed=seed,
        **settings,
    )


def timm(inputs: Inputs) -> Callable[[], object]:
    from timm.optim import Lars

    return Lars(
        with_gradients(inputs), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, trust_coeff=COEFFICIENT, foreach=True
    ).step


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import LARS32bit

    return LARS32bit(with_gradients(inputs), lr=LR, momentum=MOMENTUM, weight_decay=DECAY).step


def apex(inputs: Inputs) -> Callable[[], object]:
    from apex.parallel.LARC import LARC

    inner = torch.optim.SGD(with_gradients(inputs), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    return LARC(inner, trust_coefficient=COEFFICIENT, clip=False).step


PEERS: dict[str, Prepare] = {"timm foreach": timm, "bitsandbytes": bitsandbytes, "apex LARC": apex}


def _bench(
    parameter: torch.dtype, momentum: torch.dtype, scaled: bool = False, seed: int | None = None, adapt: bool = True
) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return random_lists(sizes, device, generator, parameters=parameter, gradients=parameter, momenta=momentum)

    return Bench(
        make=make,
        kernel=partial(step, scaled=scaled, seed=seed, adapt=adapt),
        reference=partial(reference, factor=CLIP if scaled else 1.0, adapt=adapt),
        # Half a unit for each rounding of the longest chain: some 20, through norms, ratio and momentum to the
        # parameter. To bfloat16 parameters that chain is nothing; float32 momenta beside them have it all but for two.
        tolerance=2 if momentum == torch.bfloat16 else 10,
        bytes_per_element=(5 if adapt else 3) * parameter.itemsize + 2 * momentum.itemsize,
        peers=PEERS if adapt and momentum == parameter else {},  # theirs keep the momentum in the parameter's dtype
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_unadapted": _bench(torch.float32, torch.float32, adapt=False),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "bfloat16": _bench(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.bfloat16, seed=1),
    "bfloat16_stochastic_scaled": _bench(torch.bfloat16, torch.bfloat16, scaled=True, seed=1),
    "bfloat16_float32_momentum": _bench(torch.bfloat16, torch.float32),
}
