"""Checks and timings of the kernels of Mesa's codes, alone and written by layers, beside torch's operators.

What layers are given are codes' own numbers, so that rounding at random has no choice, and gradients are those there;
but of softmax codes are of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, random_lists
from techniques.activation_compression.mesa import codes_kernel as kernel
from techniques.activation_compression.mesa import fused_kernel as fused
from techniques.activation_compression.mesa.codes import LEVELS, decode, encode, ranges, scales

WIDTH, HEADS = 768, 12
ACTIVATIONS = (8 * 1024 * WIDTH,) * 4  # of eight sequences of 1024 tokens in GPT-2's smallest model
STEP = {torch.float32: 2.0**19, torch.bfloat16: 16.0}  # a level, a 255th of normal numbers' range, in roundings of 1
Way = Callable[[Tensor, Tensor], Tensor]


def grouped(x: Tensor) -> Tensor:
    """Returns x as [outer, heads, inner] where the model's width fits, else as one group."""
    return x.view(-1, HEADS, WIDTH // HEADS) if x.numel() and x.numel() % WIDTH == 0 else x.view(1, 1, -1)


def step(inputs: Inputs, way: Way) -> Callable[[], object]:
    packed = [(grouped(x), ranges(grouped(x)) if x.numel() else torch.zeros(2, 1)) for x in inputs["values"]]

    def run() -> None:
        inputs["restored"] = [way(x, clip).flatten() for x, clip in packed]

    return run


def by_kernel(x: Tensor, clip: Tensor) -> Tensor:
    seed = torch.ones(1, dtype=torch.int32, device=x.device)
    codes = kernel.encode(x, torch.stack([clip[0], scales(clip)]), seed)
    return kernel.decode(codes, torch.stack([clip[0], clip[1] / LEVELS]), x.dtype)


def by_torch(x: Tensor, clip: Tensor) -> Tensor:
    return decode(encode(x, clip, torch.Generator(x.device)), clip).to(x.dtype)


def reference(inputs: Inputs) -> Inputs:
    """Returns the values themselves; none of a group that has one that is not finite."""
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


CLIP = -4.0, LEVELS / 32  # of codes that are multiples of 1/32
EPSILON = 1e-5
SEED = 2  # whose noise, below 1, takes no checked code to the next one: the sum of both is rounded


def torchs(name: str, x: Tensor) -> Tensor:
    """Computes a layer [outer, groups, inner] by torch's operators."""
    if name == "softmax":
        return x.flatten(1).softmax(-1).view(x.shape)
    if name == "layer_norm":
        return F.layer_norm(x.flatten(1), (x[0].numel(),), eps=EPSILON).view(x.shape)
    return F.gelu(x, approximate="tanh" if name == "gelu tanh" else "none")


def by_fused(name: str, x: Tensor, dy: Tensor, clip: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Computes a layer's output, and its gradient through codes."""
    forth, back = torch.stack([clip[0], scales(clip)]), torch.stack([clip[0], clip[1] / LEVELS])
    outer, groups, inner = x.shape
    rows, of_rows = x.flatten(1), dy.flatten(1)
    if name == "softmax":
        sizes = 1, 1, x.numel()
        y, codes, _ = fused.softmax(rows, sizes, forth, seed)
        return y.view(x.shape), fused.softmax_back(codes, of_rows, sizes, back).view(x.shape)
    if name == "layer_norm":
        weight, bias = torch.ones_like(rows[0], dtype=torch.float32), torch.zeros_like(rows[0], dtype=torch.float32)
        y, means, inverse, codes, _ = fused.layer_norm(rows, weight, bias, EPSILON, groups, forth, seed, x.dtype)
        dx, *_ = fused.layer_norm_back(codes, of_rows, weight, means, inverse, groups, back, x.dtype)
        return y.view(x.shape), dx.view(x.shape)
    tanh = name == "gelu tanh"
    y, codes, _ = fused.gelu(x, (outer, groups, inner), forth, seed, tanh)
    return y, fused.gelu_back(codes, dy, (outer, groups, inner), back, tanh)


def by_torchs(name: str, x: Tensor, dy: Tensor, clip: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    y = torchs(name, leaf)
    return y.detach(), torch.autograd.grad(y, leaf, dy)[0]


def norm_by_formula(name: str, x: Tensor, dy: Tensor, clip: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Computes in the kernel's order, which decides whether what is not finite becomes infinite or NaN."""
    d, row = dy.flatten(1), x.flatten(1)
    scale = (row.var(-1, correction=0, keepdim=True) + EPSILON).rsqrt()
    normal = (row - row.mean(-1, keepdim=True)) * scale
    dx = (d - d.mean(-1, keepdim=True) - normal * (d * normal).mean(-1, keepdim=True)) * scale
    return normal.view(x.shape), dx.view(x.shape)


def unfused(name: str, x: Tensor, dy: Tensor, clip: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Computes ranges, codes and numbers by passes of their own."""
    ranges(x)
    codes = kernel.encode(x, torch.stack([clip[0], scales(clip)]), seed)
    back = kernel.decode(codes, torch.stack([clip[0], clip[1] / LEVELS]), x.dtype)
    return torchs(name, x), by_torchs(name, back, dy, clip, seed)[1]


def layer_step(inputs: Inputs, name: str, passes: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[], object]:
    drawn = []
    for x, dy in zip(inputs["values"], inputs["incoming"], strict=True):
        if x.numel():
            x, dy = grouped(x), grouped(dy)
            clip = torch.tensor(CLIP, device=x.device)[:, None].expand(2, x.shape[1]).contiguous()
            clip = ranges(torchs(name, x.float()).view(1, 1, -1)) if name == "softmax" else clip
            drawn.append((x, dy, clip, torch.full((1,), SEED, dtype=torch.int32, device=x.device)))

    def run() -> None:
        results = [[part.flatten() for part in passes(name, *four)] for four in drawn]
        inputs["outputs"], inputs["of_values"] = ([result[k] for result in results] for k in range(2))

    return run


def layer_reference(inputs: Inputs, name: str) -> Inputs:
    exact = {key: [operand.double() for operand in inputs[key]] for key in ("values", "incoming")}
    layer_step(exact, name, norm_by_formula if name == "layer_norm" else by_torchs)()
    return {key: exact[key] for key in ("outputs", "of_values")}


def layer_bench(name: str, dtype: torch.dtype) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        drawn = [torch.randint(-128, 128, (size,), device=device, generator=generator) / 32 for size in sizes]
        return random_lists(sizes, device, generator, incoming=dtype) | {
            "values": [tensor.to(dtype) for tensor in drawn]
        }

    few = 64.0 if dtype == torch.float32 else 4.0
    return Bench(
        make=make,
        kernel=partial(layer_step, name=name, passes=by_fused),
        reference=partial(layer_reference, name=name),
        tolerance=8 * STEP[dtype] if name == "softmax" else few,
        bytes_per_element=2 * (2 * dtype.itemsize + 1),
        peers={
            "codes by a pass of their own": partial(layer_step, name=name, passes=unfused),
            "torch eager, nothing coded": partial(layer_step, name=name, passes=by_torchs),
        },
        multi_tensor=False,
        timed_sizes=ACTIVATIONS,
    )


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BENCHES = {spelled: bench(dtype) for spelled, dtype in DTYPES.items()} | {
    f"{name} {spelled}": layer_bench(name, dtype)
    for name in ("gelu", "gelu tanh", "softmax", "layer_norm")
    for spelled, dtype in DTYPES.items()
}
