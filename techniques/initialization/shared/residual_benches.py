"""Checks and timings of the kernels of y = x + s b, forth and back, beside torch's operators and its compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists

WIDTH = 768
BRANCHES = (8 * 1024 * WIDTH,) * 4  # of eight sequences of 1024 tokens in GPT-2's smallest model
NAMES = ("streams", "branches", "gradients", "scales")
Passes = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def width_of(elements: int) -> int:
    """Returns the width of a bench's tensor: the model's where it fits, else all of it."""
    return WIDTH if elements % WIDTH == 0 and elements else elements


def matrices(inputs: Inputs) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Returns the streams, branches and gradients [tokens, width], with their scales [1] or [width]."""
    fours = []
    for *triple, scale in zip(*(inputs[name] for name in NAMES), strict=True):
        width = width_of(triple[0].numel())
        x, b, dy = (tensor.view(-1, width) if width else tensor.view(0, 0) for tensor in triple)
        fours.append((x, b, dy, scale))
    return fours


def torchs(x: Tensor, b: Tensor, dy: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes y, db and ds by torch's operators."""
    of_scale = (dy * b).sum().view(1) if s.numel() == 1 else (dy * b).sum(0)
    return x + s * b, (s * dy).to(b.dtype), of_scale


def reference(inputs: Inputs) -> Inputs:
    exact = [torchs(*(tensor.double() for tensor in four)) for four in matrices(inputs)]
    return dict(zip(("outputs", "of_branches", "of_scales"), map(list, zip(*exact))))


def step(inputs: Inputs, passes: Passes) -> Callable[[], object]:
    drawn = matrices(inputs)

    def run() -> None:
        results = [passes(*four) for four in drawn]
        inputs.update(zip(("outputs", "of_branches", "of_scales"), map(list, zip(*results))))

    return run


def compiled(inputs: Inputs) -> Callable[[], object]:
    return step(inputs, torch.compile(torchs))


PEERS: dict[str, Prepare] = {"torch eager": partial(step, passes=torchs), "torch.compile": compiled}


def benches(kernel: Any, a_number: bool) -> dict[str, Bench]:
    """Returns the benches of a module with ``scaled_sum`` and ``gradients``, whose scale is a number or a vector."""

    def passes(x: Tensor, b: Tensor, dy: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return kernel.scaled_sum(x, b, s), *kernel.gradients(dy, b, s)

    def bench(stream: torch.dtype, branch: torch.dtype) -> Bench:
        def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
            drawn = random_lists(sizes, device, generator, streams=stream, branches=branch, gradients=stream)
            widths = [1 if a_number else width_of(size) for size in sizes]
            return drawn | random_lists(widths, device, generator, scales=torch.float32)

        return Bench(
            make=make,
            kernel=partial(step, passes=passes),
            reference=reference,
            tolerance=20,  # a scale's gradient is a sum of thousands of products
            bytes_per_element=3 * stream.itemsize + 3 * branch.itemsize,
            peers=PEERS,
            multi_tensor=False,
            timed_sizes=BRANCHES,
        )

    return {
        "float32": bench(torch.float32, torch.float32),
        "bfloat16": bench(torch.bfloat16, torch.bfloat16),
        "autocast": bench(torch.float32, torch.bfloat16),
    }
