"""Checks and timings of the 4-bit AdamW's kernels, beside torch's operators, torchao's optimizer, whose scales are of
groups alone, and torch's fused 32-bit AdamW, which moves 28 bytes a float32 parameter for 18.5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from suite.kernels.bench import Bench, Inputs, random_lists, with_gradients
from techniques.precision.adam4bit_rank1 import kernel
from techniques.precision.adam4bit_rank1.codes import BLOCK, FIRST, decode_rank1, encode_rank1, packed, unpacked
from techniques.precision.adam4bit_rank1.optimizer import AdamW4bit
from techniques.precision.shared.low_bit import decode_blocks, encode_blocks

LR, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.95, 1e-8, 0.1  # a large step, so that bfloat16 parameters show it
STEP = 3
CLIP = 0.75 / 1024
RATES: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
STATES = ("first_codes", "first_scales", "second_codes", "second_rows", "second_columns")


def width_of(size: int) -> int:
    """Returns the columns of the matrix of ``size`` elements: 768 or 128 where that is possible, as in Transformers;
    else few."""
    return next(width for width in (768, 128, 7, 3, 1) if size % width == 0)


def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Makes random matrices, flat, of the ``sizes`` that are not 0, which no low-bit parameter is."""
    sizes = [max(1, size) for size in sizes]
    inputs = random_lists(sizes, device, generator, parameters=dtype, gradients=dtype, m=torch.float32, v=torch.float32)
    first = [encode_blocks(m, BLOCK, FIRST) for m in inputs.pop("m")]
    second = [encode_rank1(v.square().view(-1, width_of(len(v)))) for v in inputs.pop("v")]
    inputs["first_codes"] = [packed(codes) for codes, _ in first]
    inputs["first_scales"] = [scales for _, scales in first]
    inputs["second_codes"] = [packed(codes) for codes, _, _ in second]
    inputs["second_rows"], inputs["second_columns"] = ([moment[at] for moment in second] for at in (1, 2))
    return inputs


def reference(inputs: Inputs, factor: float) -> Inputs:
    """Computes Algorithm 1 in float64, of gradients times ``factor``; a group's scale is infinite where one is no
    number."""
    expected: Inputs = {name: [] for name in ("parameters", "first_scales", "second_rows", "second_columns")}
    for p, g, first, scales, second, rows, columns in zip(
        *(inputs[name] for name in ("parameters", "gradients", *STATES))
    ):
        wide_p, wide_g = p.double(), g.double() * factor
        m = decode_blocks(unpacked(first, len(p)), scales, BLOCK, FIRST).double()
        v = decode_rank1(unpacked(second, len(p)).view(len(rows), -1), rows, columns).double().view(-1)
        m, v = BETA1 * m + (1 - BETA1) * wide_g, BETA2 * v + (1 - BETA2) * wide_g.square()
        direction = m / (1 - BETA1**STEP) / ((v / (1 - BETA2**STEP)).sqrt() + EPS)
        expected["parameters"].append((1 - LR * DECAY) * wide_p - LR * direction)
        groups = torch.nn.functional.pad(m, (0, -len(m) % BLOCK)).view(-1, BLOCK)
        expected["first_scales"].append(groups.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).amax(1))
        expected["second_rows"].append(v.view(len(rows), -1).amax(1))
        expected["second_columns"].append(v.view(len(rows), -1).amax(0))
    return expected


def step(inputs: Inputs, scaled: bool, seed: int | None) -> Callable[[], object]:
    tables, scalars = kernel.Tables(), (("clip", CLIP), ("found_inf", 0.0))
    device = inputs["parameters"][0].device
    settings: dict[str, Any] = {name: torch.tensor(value, device=device) for name, value in scalars} if scaled else {}
    return lambda: kernel.adam4bit_step(
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
        seed=seed,
        **settings,
    )


def matrices(inputs: Inputs) -> list[torch.nn.Parameter]:
    names = "parameters", "gradients"
    return with_gradients(
        {name: [operand.view(-1, width_of(len(operand))) for operand in inputs[name]] for name in names}
    )


def by_torch(inputs: Inputs) -> Callable[[], object]:
    return AdamW4bit(matrices(inputs), **RATES, smallest=1, fused=False).step


def torchao(inputs: Inputs) -> Callable[[], object]:
    from torchao.optim import AdamW4bit as Theirs

    return Theirs(matrices(inputs), **RATES).step


def adamw(inputs: Inputs) -> Callable[[], object]:
    return torch.optim.AdamW(matrices(inputs), fused=True, **RATES).step


def _bench(dtype: torch.dtype, scaled: bool = False, seed: int | None = None) -> Bench:
    return Bench(
        make=partial(make, dtype=dtype),
        kernel=partial(step, scaled=scaled, seed=seed),
        reference=partial(reference, factor=CLIP if scaled else 1.0),
        # Half a unit for each of 19 roundings of Adam, four of decoding, and the fast quotient's and root's two each.
        tolerance=16 if dtype == torch.float32 else (2 if seed is None else 3),
        bytes_per_element=4 * dtype.itemsize + 2.5 + 8 / BLOCK,
        peers={"torch's operators": by_torch, "torchao": torchao, "torch fused AdamW": adamw},
        multi_tensor=False,  # one step it is, but states have other shapes than what the launch's tests address
    )


BENCHES = {
    "float32": _bench(torch.float32),
    "float32_scaled": _bench(torch.float32, scaled=True),
    "bfloat16": _bench(torch.bfloat16),
    "bfloat16_stochastic": _bench(torch.bfloat16, seed=1),
}
