"""Checks and timings of the 8-bit AdamW's kernel, beside bitsandbytes' and torchao's; and torch's fused 32-bit AdamW,
which moves 28 bytes a float32 parameter for 16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists, with_gradients
from techniques.precision.adam8bit_blockwise import kernel
from techniques.precision.adam8bit_blockwise.codes import FIRST, SECOND
from techniques.precision.shared.low_bit import decode_blocks, encode_blocks

LR, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.95, 1e-8, 0.1  # a large step, so that bfloat16 parameters show it
STEP = 3
CLIP = 0.75 / 1024
RATES: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
STATES = ("first_codes", "first_scales", "second_codes", "second_scales")


def make(
    sizes: Sequence[int], device: torch.device, generator: torch.Generator, dtype: torch.dtype, block: int
) -> Inputs:
    """Makes random tensors of the ``sizes`` that are not 0, which no low-bit parameter is."""
    inputs = random_lists(
        [max(1, size) for size in sizes],
        device,
        generator,
        parameters=dtype,
        gradients=dtype,
        m=torch.float32,
        v=torch.float32,
    )
    encoded = {"first": [encode_blocks(m, block, FIRST) for m in inputs.pop("m")]}
    encoded["second"] = [encode_blocks(v.square(), block, SECOND) for v in inputs.pop("v")]
    for name, pairs in encoded.items():
        inputs[f"{name}_codes"], inputs[f"{name}_scales"] = (list(pair) for pair in zip(*pairs))
    return inputs


def reference(inputs: Inputs, block: int, factor: float) -> Inputs:
    """Computes section 2 in float64, of gradients times ``factor``; a scale is the largest magnitude of a block,
    infinite where one is no number."""
    expected: Inputs = {"parameters": [], "first_scales": [], "second_scales": []}
    for p, g, first, first_scales, second, second_scales in zip(
        *(inputs[name] for name in ("parameters", "gradients", *STATES))
    ):
        wide_p, wide_g = p.double(), g.double() * factor
        m = BETA1 * decode_blocks(first, first_scales, block, FIRST).double() + (1 - BETA1) * wide_g
        v = decode_blocks(second, second_scales, block, SECOND).double()
        v = BETA2 * v + (1 - BETA2) * wide_g.square()
        direction = m / (1 - BETA1**STEP) / ((v / (1 - BETA2**STEP)).sqrt() + EPS)
        expected["parameters"].append((1 - LR * DECAY) * wide_p - LR * direction)
        for name, moment in (("first", m), ("second", v)):
            rows = torch.nn.functional.pad(moment, (0, -len(moment) % block)).view(-1, block)
            expected[f"{name}_scales"].append(rows.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).amax(1))
    return expected


def step(inputs: Inputs, block: int, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables = kernel.launch_tables()
    scalars = ("clip", CLIP), ("found_inf", 0.0)
    device = inputs["parameters"][0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.adam8bit_step(
        inputs["parameters"],
        inputs["gradients"],
        [inputs[name] for name in STATES],
        tables,
        step=STEP,
        lr=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=EPS,
        weight_decay=DECAY,
        block=block,
        seed=seed,
        **settings,
    )


def bitsandbytes(inputs: Inputs) -> Callable[[], object]:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(with_gradients(inputs), **RATES).step


def torchao(inputs: Inputs, block: int) -> Callable[[], object]:
    from torchao.optim import AdamW8bit

    return AdamW8bit(with_gradients(inputs), **RATES, block_size=block).step


def adamw(inputs: Inputs) -> Callable[[], object]:
    return torch.optim.AdamW(with_gradients(inputs), fused=True, **RATES).step


def _bench(dtype: torch.dtype, block: int, scaled: bool = False, seed: int | None = None) -> Bench:
    peers: dict[str, Prepare] = {"torchao": partial(torchao, block=block), "torch fused AdamW": adamw}
    if block == 256:
        peers["bitsandbytes"] = bitsandbytes
    return Bench(
        make=partial(make, dtype=dtype, block=block),
        kernel=partial(step, block=block, scaled=scaled, seed=seed),
        reference=partial(reference, block=block, factor=CLIP if scaled else 1.0),
        # Half a unit for each of 19 roundings of Adam, four of decoding, and the fast quotient's and root's two each.
        tolerance=16 if dtype == torch.float32 else (2 if seed is None else 3),
        bytes_per_element=3 * dtype.itemsize + 4 + 16 / block,
        peers=peers,
        multi_tensor=False,  # one launch it is, but scales have other shapes than what the launch's tests address
    )


BENCHES = {
    "float32": _bench(torch.float32, 2048),
    "float32_256": _bench(torch.float32, 256),
    "float32_256_scaled": _bench(torch.float32, 256, scaled=True),
    "bfloat16": _bench(torch.bfloat16, 2048),
    "bfloat16_256": _bench(torch.bfloat16, 256),
    "bfloat16_256_stochastic": _bench(torch.bfloat16, 256, seed=1),
}
