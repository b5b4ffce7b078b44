"""Checks and timings of Adam's kernel, with either kind of decay, beside torch's, bitsandbytes' and apex's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, random_lists, with_gradients
from techniques.shared import adam_kernel as kernel

LR, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.95, 1e-8, 0.1  # a large step, so that bfloat16 parameters show it
STEP = 3
CLIP = 0.75 / 1024  # as if a loss scale were divided out, too
RATES: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
NAMES = ("parameters", "gradients", "first_moments", "second_moments")


def reference(inputs: Inputs, decoupled: bool, factor: float) -> Inputs:
    """Runs Algorithm 1 (AdamW's paper: 2) in float64, of gradients times ``factor``, with decay."""
    expected: Inputs = {"parameters": [], "first_moments": [], "second_moments": []}
    for p, g, m, v in zip(*(map(Tensor.double, inputs[name]) for name in NAMES)):
        g = factor * g + (0 if decoupled else DECAY * p)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g.square()
        deviation = (v / (1 - BETA2**STEP)).sqrt() + EPS
        p = p - LR * (m / (1 - BETA1**STEP) / deviation + (DECAY * p if decoupled else 0))
        for tensors, tensor in zip(expected.values(), (p, m, v)):
            tensors.append(tensor)
    return expected


def step(inputs: Inputs, decoupled: bool, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    parameters, gradients, first_moments, second_moments = (inputs[name] for name in NAMES)
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = parameters[0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.adam_step(
        parameters,
        gradients,
        first_moments,
        second_moments,
        tables,
        step=STEP,
        lr=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=EPS,
        weight_decay=DECAY,
        decoupled=decoupled,
        seed=seed,
        **settings,
    )


def torch_adam(inputs: Inputs, decoupled: bool, **settings: Any) -> Callable[[], object]:
    optimizer = torch.optim.AdamW if decoupled else torch.optim.Adam
    return optimizer(with_gradients(inputs), **RATES, **settings).step


def bitsandbytes(inputs: Inputs, decoupled: bool) -> Callable[[], object]:
    from bitsandbytes.optim import Adam32bit, AdamW32bit

    return (AdamW32bit if decoupled else Adam32bit)(with_gradients(inputs), **RATES).step


def apex(inputs: Inputs, decoupled: bool) -> Callable[[], object]:
    from apex.optimizers import FusedAdam

    return FusedAdam(with_gradients(inputs), adam_w_mode=decoupled, **RATES).step


def _bench(
    decoupled: bool, parameter: torch.dtype, moment: torch.dtype, scaled: bool = False, seed: int | None = None
) -> Bench:
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

    # torch keeps moments in the parameter's dtype, the others in float32
    peers: dict[str, Callable[..., Callable[[], object]]] = {}
    if moment == parameter:
        peers |= {"torch fused": partial(torch_adam, fused=True), "torch foreach": partial(torch_adam, foreach=True)}
    if moment == torch.float32:
        peers |= {"bitsandbytes": bitsandbytes, "apex": apex}
    return Bench(
        make=make,
        kernel=partial(step, decoupled=decoupled, scaled=scaled, seed=seed),
        reference=partial(reference, decoupled=decoupled, factor=CLIP if scaled else 1.0),
        # Half a unit for each rounding of the longest chain: 21 to the parameter, scaled (19 where decoupled); 7 (4) to
        # a moment. To bfloat16 parameters that chain is nothing.
        tolerance=(10 if decoupled else 11) if parameter == torch.float32 else (2 if decoupled else 4),
        bytes_per_element=3 * parameter.itemsize + 4 * moment.itemsize,
        peers={name: partial(peer, decoupled=decoupled) for name, peer in peers.items()},
    )


def benches(decoupled: bool) -> dict[str, Bench]:
    """Returns the benches of the kernel's manifests for either kind of decay."""
    return {
        "float32": _bench(decoupled, torch.float32, torch.float32),
        "float32_scaled": _bench(decoupled, torch.float32, torch.float32, scaled=True),
        "bfloat16": _bench(decoupled, torch.bfloat16, torch.float32),
        "bfloat16_stochastic": _bench(decoupled, torch.bfloat16, torch.float32, seed=1),
        "bfloat16_stochastic_scaled": _bench(decoupled, torch.bfloat16, torch.float32, scaled=True, seed=1),
        "bfloat16_moments": _bench(decoupled, torch.bfloat16, torch.bfloat16),
    }


BENCHES = benches(decoupled=False)
