"""Checks and timings of the scaled product of int8 matrices, beside torch's own and the product in bfloat16.

A list's elements are rows of p, with their scales; the other sizes are GPT-2's smallest model's, where a step is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare
from techniques.precision.int8_mixed import kernel

TOKENS = 8 * 1024
TIMED, CHECKED = (768, 3072), (40, 24)  # k and n: of the first layer of an MLP, and of one for the interpreter
Product = Callable[[Tensor, Tensor, Tensor, Tensor, torch.dtype], Tensor]


def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Makes ``left`` [m, k] and ``right`` [n, k], flat, with their scales: those of ``left`` are called ``gradients``,
    whose rows they belong to in a backward pass, those of ``right`` ``columns``."""

    def integers(count: int) -> Tensor:
        return torch.randint(-127, 128, (count,), dtype=torch.int8, device=device, generator=generator)

    shapes = [(size, *(TIMED if size == TOKENS else CHECKED)) for size in sizes]
    return {
        "left": [integers(m * k) for m, k, _ in shapes],
        "right": [integers(n * k) for _, k, n in shapes],
        "gradients": [torch.rand(m, device=device, generator=generator) for m, _, _ in shapes],
        "columns": [torch.rand(n, device=device, generator=generator) for _, _, n in shapes],
    }


def matrices(inputs: Inputs) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Returns p [m, k], q [n, k], s [m, 1], t [n, 1] of each."""
    lists = (inputs[name] for name in ("left", "right", "gradients", "columns"))
    fours = []
    for p, q, s, t in zip(*lists, strict=True):
        k = q.numel() // t.numel()
        fours.append((p.view(-1, k), q.view(-1, k), s[:, None], t[:, None]))
    return fours


def step(product: Product, dtype: torch.dtype) -> Prepare:
    def prepare(inputs: Inputs) -> Callable[[], object]:
        drawn = matrices(inputs)
        return lambda: inputs.update(outputs=[product(*four, dtype) for four in drawn])

    return prepare


def reference(inputs: Inputs) -> Inputs:
    return {"outputs": [p.double() @ q.double().T * s.double() * t.double().T for p, q, s, t in matrices(inputs)]}


def torchs(p: Tensor, q: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch._int_mm(p, q.T) * s * t.T).to(dtype)


def unrounded(p: Tensor, q: Tensor, s: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes the product in bfloat16 of as many numbers, with the time that it takes to widen these."""
    return p.bfloat16() @ q.bfloat16().T


def bench(dtype: torch.dtype) -> Bench:
    k, n = TIMED
    return Bench(
        make=make,
        kernel=step(kernel.scaled_product, dtype),
        reference=reference,
        tolerance=4,
        bytes_per_element=k + 4 + n * dtype.itemsize + n * k / TOKENS,  # of a row; tensor cores set a floor, too
        peers={"torch": step(torchs, dtype), "bfloat16": step(unrounded, dtype)},
        multi_tensor=False,
        timed_sizes=(TOKENS,),
    )


BENCHES = {"float32": bench(torch.float32), "bfloat16": bench(torch.bfloat16)}
