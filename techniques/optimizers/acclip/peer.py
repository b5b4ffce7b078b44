"""Checks and timings of ACClip's kernel. No other library has one to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, random_lists
from techniques.optimizers.acclip import kernel

LR, BETA1, BETA2, EPS, DECAY = 0.3, 0.9, 0.99, 1e-5, 0.1  # a large step, so that bfloat16 parameters show it
CLIP = 0.75 / 8  # as if a loss scale were divided out, too
NAMES = ("parameters", "gradients", "momenta", "powers")


def reference(inputs: Inputs, factor: float, alpha: float) -> Inputs:
    """Runs Algorithm 2 in float64, of gradients times ``factor``."""
    expected: Inputs = {"parameters": [], "momenta": [], "powers": []}
    for p, g, m, power in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        m = BETA1 * m + (1 - BETA1) * factor * g
        power = BETA2 * power + (1 - BETA2) * (factor * g).abs() ** alpha
        share = (power ** (1 / alpha) / (m.abs() + EPS)).clamp(max=1)
        p = (1 - LR * DECAY) * p - LR * share * m
        for tensors, tensor in zip(expected.values(), (p, m, power)):
            tensors.append(tensor)
    return expected


def step(inputs: Inputs, alpha: float, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, momenta, powers = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.acclip_step(
        parameters,
        gradients,
        momenta,
        powers,
        tables,
        lr=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=EPS,
        alpha=alpha,
        weight_decay=DECAY,
        seed=seed,
        **settings,
    )


def _bench(
    parameter: torch.dtype, state: torch.dtype, alpha: float = 1.0, scaled: bool = False, seed: int | None = None
) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        inputs = random_lists(
            sizes, device, generator, parameters=parameter, gradients=parameter, momenta=state, powers=state
        )
        torch._foreach_abs_(inputs["powers"])  # a mean of powers
        return inputs

    return Bench(
        make=make,
        kernel=partial(step, alpha=alpha, scaled=scaled, seed=seed),
        reference=partial(reference, factor=CLIP if scaled else 1.0, alpha=alpha),
        # Half a unit for each rounding of the longest chain, some 16. Through exp2(a log2 x) a power loses as many
        # units as its exponent a log2 x is large: up to 25, twice.
        tolerance=8 if alpha in (1, 2) else 50,
        bytes_per_element=3 * parameter.itemsize + 4 * state.itemsize,
    )


BENCHES = {
    "float32": _bench(torch.float32, torch.float32),
    "float32_scaled": _bench(torch.float32, torch.float32, scaled=True),
    "float32_alpha_2": _bench(torch.float32, torch.float32, alpha=2.0),
    "float32_alpha_between": _bench(torch.float32, torch.float32, alpha=1.5),
    "bfloat16": _bench(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _bench(torch.bfloat16, torch.float32, seed=1),
    "bfloat16_stochastic_scaled": _bench(torch.bfloat16, torch.float32, scaled=True, seed=1),
}
