"""Checks and timings of the kernel of SGD with momentum, beside torch's, bitsandbytes' and apex's.

Beside them torch's fused AdamW, which moves 28 bytes a float32 parameter for these 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.shared import sgd_kernel as kernel

# A large step, so that bfloat16 parameters show it.
RATES: dict[str, Any] = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
CLIP = 0.75 / 1024  # as if a loss scale were divided out, too
NAMES = ("parameters", "gradients", "velocities")


def reference(inputs: Inputs, factor: float, nesterov: bool) -> Inputs:
    """Runs torch's form in float64, of gradients times ``factor``."""
    lr, momentum, weight_decay = RATES.values()
    expected: Inputs = {"parameters": [], "velocities": []}
    for p, g, v in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        g = factor * g + weight_decay * p
        v = momentum * v + g
        expected["parameters"].append(p - lr * (g + momentum * v if nesterov else v))
        expected["velocities"].append(v)
    return expected


def step(inputs: Inputs, scaled: bool, nesterov: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, velocities = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.sgd_step(
        parameters, gradients, velocities, tables, nesterov=nesterov, seed=seed, **RATES, **settings
    )


def torch_sgd(inputs: Inputs, **settings: Any) -> Callable[[], object]:
    return torch.optim.SGD(with_gradients(inputs), **RATES, **settings).step


def adamw(inputs: Inputs) -> Callable[[], object]:
    return torch.optim.AdamW(with_gradients(inputs), lr=RATES["lr"], fused=True).step


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import SGD32bit

    return SGD32bit(with_gradients(inputs), **RATES).step


def apex(inputs: Inputs, nesterov: bool) -> Callable[[], object]:
    from apex.optimizers import FusedSGD

    return FusedSGD(with_gradients(inputs), nesterov=nesterov, **RATES).step


def _peers(nesterov: bool) -> dict[str, Prepare]:
    return {
        "torch fused": partial(torch_sgd, fused=True, nesterov=nesterov),
        "torch foreach": partial(torch_sgd, foreach=True, nesterov=nesterov),
        "apex": partial(apex, nesterov=nesterov),
        "torch fused AdamW": adamw,
        **({} if nesterov else {"bitsandbytes": bitsandbytes}),
    }


def _bench(
    parameter: torch.dtype,
    velocity: torch.dtype,
    scaled: bool = False,
    nesterov: bool = False,
    seed: int | None = None,
) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return random_lists(sizes, device, generator, parameters=parameter, gradients=parameter, velocities=velocity)

    return Bench(
        make=make,
        kernel=partial(step, scaled=scaled, nesterov=nesterov, seed=seed),
        reference=partial(reference, factor=CLIP if scaled else 1.0, nesterov=nesterov),
        # Half a unit for each rounding of the longest chain: 12 with scaled gradients and Nesterov's sum.
        tolerance=6,
        bytes_per_element=3 * parameter.itemsize + 2 * velocity.itemsize,
        peers=_peers(nesterov) if velocity == parameter else {},  # theirs keep it in the parameter's dtype
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "float32_nesterov": _bench(torch.float32, torch.float32, nesterov=True),
    "bfloat16": _bench(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.float32, seed=1),
    "bfloat16_stochastic_scaled": _bench(torch.bfloat16, torch.float32, scaled=True, seed=1),
}
