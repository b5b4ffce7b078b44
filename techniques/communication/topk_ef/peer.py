"""Checks and timings of top-k with error feedback, beside torch.topk, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists
from techniques.communication.shared import top_k_kernel as kernel
from techniques.communication.shared.sparse import scattered

RATIO = 0.01
Packing = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Draws tensors, without those that have no entry, of which nothing can be sent."""
    return random_lists(
        [max(1, size) for size in sizes], device, generator, gradients=torch.float32, errors=torch.float32
    )


def count(x: Tensor) -> int:
    return math.ceil(RATIO * x.numel())


def reference(inputs: Inputs) -> Inputs:
    """Computes the reference by sorting the sums, which are float32 ones: those decide which entry is the larger."""
    results: Inputs = {"errors": [], "sent": []}
    for g, e in zip(inputs["gradients"], inputs["errors"], strict=True):
        wanted = (g + e).double()
        order = wanted.abs().nan_to_num(torch.inf, torch.finfo(torch.float64).max).argsort(descending=True, stable=True)
        sent = torch.zeros_like(wanted)
        sent[order[: count(g)]] = wanted[order[: count(g)]]
        results["sent"].append(sent)
        results["errors"].append(wanted - sent)
    return results


def step(through: Packing) -> Prepare:
    def prepare(inputs: Inputs) -> Callable[[], object]:
        def run() -> None:
            packed = [through(g, e, count(g)) for g, e in zip(inputs["gradients"], inputs["errors"], strict=True)]
            inputs["packed"] = [part for pair in packed for part in pair]

        return run

    return prepare


def unpack(inputs: Inputs) -> None:
    parts = inputs.pop("packed")
    shapes = [gradient.shape for gradient in inputs["gradients"]]
    inputs["sent"] = list(map(scattered, parts[::2], parts[1::2], shapes))


def by_torch(gradient: Tensor, errors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    errors += gradient
    indices = errors.abs().topk(count, sorted=False)[1]
    values = errors[indices]
    errors[indices] = 0.0
    return values, indices.int()


BENCHES = {
    "float32": Bench(
        make=make,
        kernel=step(kernel.top_k),
        reference=reference,
        tolerance=0,
        bytes_per_element=16 + 12 * RATIO,  # g, e and their sum, which is read once more; what is sent, and its place
        peers={
            "torch.topk": step(by_torch),
            "torch.topk compiled": lambda inputs: step(torch.compile(by_torch, dynamic=True))(inputs),
        },
        multi_tensor=False,
        unpack=unpack,
    )
}
