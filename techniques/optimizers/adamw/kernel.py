"""AdamW's update (1711.05101, Algorithm 2, decay as torch has it) in one pass over four lists: one launch a step.

    m     <- beta1 m + (1 - beta1) g               v <- beta2 v + (1 - beta2) g^2
    theta <- (1 - lr wd) theta - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

Traffic is the floor: 16 bytes read and 12 written a float32 parameter; with float32 moments 12 and 10 a bfloat16 one.
Arithmetic is float32, every operation rounded to nearest by itself (square root and quotient, too; memory-bound code
can afford it): so float32 results are the same bits on a GPU, under the interpreter, and in the formula as written
here with any operators that round so.

Optionally, at no further pass: gradients divided by a loss scale and multiplied by a clipping factor, the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.

The update is in place, hence no autotuning: trial runs would be steps.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
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
REGISTERS = 96  # five programs of four warps on a multiprocessor, each with four lists of loads in flight
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _update(
    parameters, first_moments, second_moments, gradients, offsets, mask, factor, seed, tensor, first,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
    STOCHASTIC: tl.constexpr,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(first_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(second_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    deviation = tl.sqrt_rn(v) * inverse_root_correction + eps
    p = decay * p - step_size * tl.div_rn(m, deviation)
    if STOCHASTIC:
        bits = optimizer_parts.random_bits(seed, tensor, first, offsets)
        rounded = optimizer_parts.narrow_stochastic(p, bits, parameters.dtype.element_ty)
    else:
        rounded = narrow(p, parameters.dtype.element_ty)
    tl.store(parameters + offsets, rounded, mask=mask)
    tl.store(first_moments + offsets, narrow(m, first_moments.dtype.element_ty), mask=mask)
    tl.store(second_moments + offsets, narrow(v, second_moments.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors", "seed"])
def adamw_kernel(
    table, blocks, tensors, seed, gradient_scale, clip, found_inf,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
    PARAMETER: tl.constexpr, MOMENT: tl.constexpr, GRADIENT: tl.constexpr, STOCHASTIC: tl.constexpr,
    BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(gradient_scale, clip)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    m = multi_tensor.address(table, 1, tensor, tensors)
    v = multi_tensor.address(table, 2, tensor, tensors)
    g = multi_tensor.address(table, 3, tensor, tensors)
    remaining = multi_tensor.elements(table, 4, tensor, tensors) - first
    if multi_tensor.vectorizable(p | m | v | g, remaining, BLOCK):
        _update(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(m, MOMENT, True) + first,
            multi_tensor.pointer(v, MOMENT, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor, seed, tensor, first,
            beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps, STOCHASTIC,
        )  # fmt: skip
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _update(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(m, MOMENT, False) + first,
                    multi_tensor.pointer(v, MOMENT, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor, seed, tensor, first,
                    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
                    STOCHASTIC,
                )  # fmt: skip


def launch_tables() -> LaunchTables:
    """What `adamw_step` keeps between steps: one for each parameter group."""
    return LaunchTables(BLOCK)


@torch.no_grad()
def adamw_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    tables: LaunchTables,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    gradient_scale: Tensor | None = None,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | None = None,
) -> None:
    """AdamW's step number ``step`` (from 1), in place: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements; both moments share a dtype. ``tables`` comes from `launch_tables` and belongs to these parameters.

    ``gradient_scale`` (divides gradients), ``clip`` (multiplies them) and ``found_inf`` (where it is not 0, nothing is
    written) are float32 tensors of one element on the parameters' device; gradients themselves stay as they are.
    Whether a step that was left out counts in ``step`` is the caller's business.

    ``seed``, different each step, rounds bfloat16 parameters stochastically; without one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    groups = tables.groups((parameters, first_moments, second_moments), (gradients,))
    scalars = (gradient_scale, clip, found_inf)
    for group in groups:
        optimizer_parts.check_dtypes(group.dtypes)
        if group.dtypes[1] != group.dtypes[2]:
            raise TypeError(f"the moments are {group.dtypes[1]} and {group.dtypes[2]}: give both one dtype")
        optimizer_parts.check_scalars(scalars, group.table.device)
    step_size = lr / (1 - beta1**step)
    inverse_root_correction = 1 / math.sqrt(1 - beta2**step)
    for group in groups:
        parameter, moment, _, gradient = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            adamw_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, optimizer_parts.seed_word(seed), *scalars,
                beta1, 1 - beta1, beta2, 1 - beta2, 1 - lr * weight_decay, step_size, inverse_root_correction, eps,
                PARAMETER=parameter, MOMENT=moment, GRADIENT=gradient,
                STOCHASTIC=seed is not None and group.dtypes[0] == torch.bfloat16, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    increment_version(parameters)


def _manifest(parameter: torch.dtype, moment: torch.dtype, stochastic: bool = False, scaled: bool = False) -> Manifest:
    """Gradients have their parameter's dtype; ``scaled`` reads all three device scalars."""
    read = [parameter.itemsize, moment.itemsize, moment.itemsize, parameter.itemsize]
    scalars = ("gradient_scale", "clip", "found_inf")
    hyper = ("beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "decay", "step_size", "inverse_root_correction")
    return Manifest(
        kernel=adamw_kernel,
        signature={
            "table": "*i64",
            "blocks": "*i64",
            "tensors": "i32",
            "seed": "i32",
            **(dict.fromkeys(scalars, "*fp32") if scaled else {}),
            **dict.fromkeys((*hyper, "eps"), "fp32"),
        },
        constants={
            **({} if scaled else dict.fromkeys(scalars)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "MOMENT": optimizer_parts.DTYPES[moment],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
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
    "bfloat16": _manifest(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_moments": _manifest(torch.bfloat16, torch.bfloat16),
}
