"""Checks and timings of the kernels of Mesa's codes, forth and back, beside torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, random_lists
from techniques.activation_compression.mesa import kernel
from techniques.activation_compression.mesa.technique import LEVELS, decode, encode, ranges, scales

WIDTH, HEADS = 768, 12
ACTIVATIONS = (8 * 1024 * WIDTH,) * 4  # of eight sequences of 1024 tokens in GPT-2's smallest model
STEP = {torch.float32: 2.0**19, torch.bfloat16: 16.0}  # a level, a 255th of normal numbers' range, in roundings of 1
Way = Callable[[Tensor, Tensor], Tensor]


def grouped(x: Tensor) -> Tensor:
    """[outer, heads, inner] where the model's width fits, else one group."""
    return x.view(-1, HEADS, WIDTH // HEADS) if x.numel() and x.numel() % WIDTH == 0 else x.view(1, 1, -1)


def step(inputs: Inputs, way: Way) -> Callable[[], object]:
    each = [(grouped(x), ranges(grouped(x)) if x.numel() else torch.zeros(2, 1)) for x in inputs["values"]]

    def run() -> None:
        inputs["restored"] = [way(x, clip).flatten() for x, clip in each]

    return run


def by_kernel(x: Tensor, clip: Tensor) -> Tensor:
    seed = torch.ones(1, dtype=torch.int32, device=x.device)
    codes = kernel.encode(x, torch.stack([clip[0], scales(clip)]), seed)
    return kernel.decode(codes, torch.stack([clip[0], clip[1] / LEVELS]), x.dtype)


def by_torch(x: Tensor, clip: Tensor) -> Tensor:
    return decode(encode(x, clip, torch.Generator(x.device)), clip).to(x.dtype)


def reference(inputs: Inputs) -> Inputs:
    """The values themselves; none of a group that has one that is not finite."""
    restored = []
    for x in inputs["values"]:
        whole = grouped(x.double())
        spoilt = ~whole.isfinite().all(2, keepdim=True).all(0, keepdim=True)
        restored.append(torch.where(spoilt, torch.nan, whole).flatten())
    return {"restored": restored}


def bench(dtype: torch.dtype) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        drawn = random_lists(sizes, device, generator, values=dtype)
        return drawn | {"gradients": drawn["values"]}  # which checks make infinite

    return Bench(
        make=make,
        kernel=partial(step, way=by_kernel),
        reference=reference,
        tolerance=STEP[dtype],
        bytes_per_element=2 * (dtype.itemsize + 1),
        peers={"torch eager": partial(step, way=by_torch)},
        multi_tensor=False,
        timed_sizes=ACTIVATIONS,
    )


BENCHES = {"float32": bench(torch.float32), "bfloat16": bench(torch.bfloat16)}
