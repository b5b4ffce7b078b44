"""SGD with momentum (torch's form, the learning rate outside) in one pass over three lists: one launch a step.

    g <- g + lambda theta          v <- mu v + (1 - d) g          theta <- theta - eta v,  or theta - eta (g + mu v)

Traffic is the floor: 12 bytes read and 8 written a float32 parameter, 10 in all a bfloat16 one with bfloat16 velocity.
In the first step (1 - d) is 1 and v is 0. Arithmetic is float32, every product and sum rounded by itself (no fused
multiply-add, which memory-bound code can afford): so float32 results are the same bits on a GPU, under the interpreter,
and in the formula written with torch operators.

Optionally, at no further pass: gradients divided by a loss scale and multiplied by a clipping factor, the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.

The update is in place, hence no autotuning: trial runs would be steps.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.portable import narrow

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
REGISTERS = 96  # five programs of four warps on a multiprocessor, each with three lists of loads in flight
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _update(
    parameters, velocities, gradients, offsets, mask, factor, seed, tensor, first,
    lr, momentum, push, weight_decay, NESTEROV: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(velocities + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    g = g + weight_decay * p
    v = momentum * v + push * g
    direction = v
    if NESTEROV:
        direction = g + momentum * v
    p = p - lr * direction
    if STOCHASTIC:
        bits = optimizer_parts.random_bits(seed, tensor, first, offsets)
        rounded = optimizer_parts.narrow_stochastic(p, bits, parameters.dtype.element_ty)
    else:
        rounded = narrow(p, parameters.dtype.element_ty)
    tl.store(parameters + offsets, rounded, mask=mask)
    tl.store(velocities + offsets, narrow(v, velocities.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors", "seed"])
def sgd_kernel(
    table, blocks, tensors, seed, gradient_scale, clip, found_inf, lr, momentum, push, weight_decay,
    PARAMETER: tl.constexpr, VELOCITY: tl.constexpr, GRADIENT: tl.constexpr,
    NESTEROV: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(gradient_scale, clip)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    v = multi_tensor.address(table, 1, tensor, tensors)
    g = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 3, tensor, tensors) - first
    if multi_tensor.vectorizable(p | v | g, remaining, BLOCK):
        _update(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(v, VELOCITY, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor, seed, tensor, first,
            lr, momentum, push, weight_decay, NESTEROV, STOCHASTIC,
        )  # fmt: skip
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _update(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(v, VELOCITY, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor, seed, tensor, first,
                    lr, momentum, push, weight_decay, NESTEROV, STOCHASTIC,
                )  # fmt: skip


def launch_tables() -> LaunchTables:
    """What `sgd_step` keeps between steps: one for each parameter group."""
    return LaunchTables(BLOCK)


@torch.no_grad()
def sgd_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: float,
    momentum: float,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    first: bool = False,
    gradient_scale: Tensor | None = None,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | None = None,
) -> None:
    """One step, in place on ``parameters`` and ``velocities``: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements. ``tables`` comes from `launch_tables` and belongs to these parameters. ``first``: the velocities are
    zeros, and the gradient enters undampened.

    ``gradient_scale`` (divides gradients), ``clip`` (multiplies them) and ``found_inf`` (where it is not 0, nothing is
    written) are float32 tensors of one element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, rounds bfloat16 parameters stochastically; without one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    groups = tables.groups((parameters, velocities), (gradients,))
    scalars = (gradient_scale, clip, found_inf)
    for group in groups:
        optimizer_parts.check_dtypes(group.dtypes)
        optimizer_parts.check_scalars(scalars, group.table.device)
    push = 1.0 if first else 1 - dampening
    for group in groups:
        parameter, velocity, gradient = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            sgd_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, optimizer_parts.seed_word(seed), *scalars,
                float(lr), float(momentum), push, float(weight_decay),
                PARAMETER=parameter, VELOCITY=velocity, GRADIENT=gradient, NESTEROV=nesterov,
                STOCHASTIC=seed is not None and group.dtypes[0] == torch.bfloat16, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    for changed in (parameters, velocities):
        increment_version(changed)


def _manifest(
    parameter: torch.dtype,
    velocity: torch.dtype,
    *,
    nesterov: bool = False,
    stochastic: bool = False,
    scaled: bool = False,
) -> Manifest:
    """Gradients have their parameter's dtype; ``scaled`` reads all three device scalars."""
    read = [parameter.itemsize, velocity.itemsize, parameter.itemsize]
    scalars = ("gradient_scale", "clip", "found_inf")
    return Manifest(
        kernel=sgd_kernel,
        signature={
            "table": "*i64",
            "blocks": "*i64",
            "tensors": "i32",
            "seed": "i32",
            **(dict.fromkeys(scalars, "*fp32") if scaled else {}),
            **dict.fromkeys(("lr", "momentum", "push", "weight_decay"), "fp32"),
        },
        constants={
            **({} if scaled else dict.fromkeys(scalars)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "VELOCITY": optimizer_parts.DTYPES[velocity],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
            "NESTEROV": nesterov,
            "STOCHASTIC": stochastic,
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=optimizer_parts.streaming_budget(read, read[:-1], BLOCK, NUM_WARPS, REGISTERS),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32),
    "float32_scaled": _manifest(torch.float32, torch.float32, scaled=True),
    "float32_nesterov": _manifest(torch.float32, torch.float32, nesterov=True),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
}
