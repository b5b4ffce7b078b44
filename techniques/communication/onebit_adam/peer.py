"""Checks and timings of 1-bit Adam's two compressions with their memories, beside torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, transformer_sizes
from techniques.communication.onebit_adam import kernel
from techniques.communication.onebit_adam.two_sided import signed, signs

RANKS = 8
CHECKED = (1, 3, 511, 513, 2048, kernel.BLOCK, 3 * kernel.BLOCK + 77)


def lengths_of(sizes: Sequence[int]) -> list[int]:
    """Returns the lengths of tensors that have entries, and of what fills the last byte."""
    whole = [max(1, size) for size in sizes]
    return [*whole, *([-sum(whole) % 8] if sum(whole) % 8 else [])]


def remembered(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Draws what was wanted, the scales that it was sent with, and the tensors' lengths."""
    lengths = lengths_of(sizes)
    return {
        "memory": [torch.randn(sum(lengths), device=device, generator=generator)],
        "before": [torch.randn(len(lengths), device=device, generator=generator).abs()],
        "lengths": [torch.tensor(lengths)],
    }


def for_worker(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    own = remembered(sizes, device, generator)
    return {"x": [torch.randn(len(own["memory"][0]), device=device, generator=generator)], **own}


def for_server(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Draws each rank's scales and bits, one rank after the other."""
    own = remembered(sizes, device, generator)
    tensors, entries = len(own["lengths"][0]), len(own["memory"][0])
    scales = torch.randn(RANKS * tensors, device=device, generator=generator).abs()
    bits = torch.randint(256, (RANKS * entries // 8,), dtype=torch.uint8, device=device, generator=generator)
    return {"scales": [scales], "bits": [bits], **own}


def of(inputs: Inputs) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    return inputs["memory"][0], inputs["before"][0], tuple(inputs["lengths"][0].tolist())


def messages(inputs: Inputs) -> tuple[Tensor, Tensor]:
    return inputs["scales"][0].view(RANKS, -1), inputs["bits"][0].view(RANKS, -1)


def left_out(inputs: Inputs, kind: torch.dtype) -> Tensor:
    memory, before, lengths = of(inputs)
    sizes = before.to(kind).repeat_interleave(torch.tensor(lengths, device=before.device))
    return memory.to(kind) - torch.where(memory >= 0, sizes, -sizes)


def mean(inputs: Inputs, kind: torch.dtype) -> Tensor:
    """Computes the mean of what the ranks have sent, in torch's order: what was left out first."""
    total = left_out(inputs, kind)
    for scales, bits in zip(*messages(inputs), strict=True):
        total = total + signed(scales.to(kind), bits, of(inputs)[2]).to(kind) / RANKS
    return total


def wanted(inputs: Inputs, kind: torch.dtype) -> Tensor:
    return inputs["x"][0].to(kind) + left_out(inputs, kind)


def reference(inputs: Inputs, of_kind: Callable[[Inputs, torch.dtype], Tensor]) -> Inputs:
    """Computes the reference, whose signs are those of float32 sums: which side of 0 an entry is on that is next to
    nothing decides nothing else."""
    lengths = of(inputs)[2]
    a = of_kind(inputs, torch.float64)
    scales = torch.stack([tensor.square().mean().sqrt() for tensor in a.split(list(lengths))])
    sizes = scales.repeat_interleave(torch.tensor(lengths, device=scales.device))
    sent = torch.where(of_kind(inputs, torch.float32) >= 0, sizes, -sizes)
    return {"memory": [a], "before": [scales], "sent": [sent]}


def kernels(inputs: Inputs, launch: Callable[[Inputs], tuple[Tensor, Tensor]]) -> Callable[[], object]:
    """Scales and bits."""

    def run() -> None:
        inputs["packed"] = list(launch(inputs))

    return run


def unpack(inputs: Inputs) -> None:
    scales, bits = inputs.pop("packed")
    inputs["sent"] = [signed(scales, bits, of(inputs)[2])]


def by_torch(inputs: Inputs, source: Callable[[Inputs], Tensor]) -> Callable[[], object]:
    """Returns a run by torch's operators, with a memory of what was left out, as two_sided has it."""
    memory, _, lengths = of(inputs)

    def run() -> None:
        memory.add_(source(inputs))
        scales, bits = signs(memory, lengths)
        memory.sub_(signed(scales, bits, lengths))

    return run


def received(inputs: Inputs) -> Tensor:
    lengths = of(inputs)[2]
    parts = [signed(scales, bits, lengths) / RANKS for scales, bits in zip(*messages(inputs), strict=True)]
    return torch.stack(parts).sum(0)


def bench(
    make: Callable[[Sequence[int], torch.device, torch.Generator], Inputs],
    launch: Callable[[Inputs], tuple[Tensor, Tensor]],
    want: Callable[[Inputs, torch.dtype], Tensor],
    source: Callable[[Inputs], Tensor],
    moved: float,
    flops: float,
) -> Bench:
    eager = partial(by_torch, source=source)
    return Bench(
        make=make,
        kernel=partial(kernels, launch=launch),
        reference=partial(reference, of_kind=want),
        tolerance=16,  # a sum of up to 2^13 squares by halves, two roots; a difference
        bytes_per_element=moved,
        flops_per_element=flops,
        peers={"torch eager": eager, "torch.compile": lambda inputs: torch.compile(eager(inputs), dynamic=True)},
        multi_tensor=False,
        unpack=unpack,
        checked_sizes=CHECKED,
        timed_sizes=transformer_sizes(),
    )


BENCHES = {
    "worker": bench(
        for_worker,
        lambda inputs: kernel.from_worker(inputs["x"][0], *of(inputs)),
        wanted,
        lambda inputs: inputs["x"][0],
        12 + 1 / 8,  # bytes an entry: x, memory there and back, a bit
        5,
    ),
    "server": bench(
        for_server,
        lambda inputs: kernel.from_server(messages(inputs), *of(inputs)),
        mean,
        received,
        8 + (RANKS + 1) / 8,
        4 + 2 * RANKS,
    ),
}
