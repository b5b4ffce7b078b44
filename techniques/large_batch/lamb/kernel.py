"""LAMB's update (1904.00962, Algorithm 2) in two passes over parameters and moments, with the norms in the first.

    pass 1    m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2          leaves ||w||, ||u||
    pass 2    w <- w - lr ratio u

    u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + wd w

u is not stored between the passes: the second computes it again from the moments, which costs the 4 bytes that reading
it would have cost and saves writing it. Pass 1 reads 16 bytes a float32 parameter and writes 8, pass 2 reads 12 and
writes 4: 40 in all (apex: 52). Gradients stay as they are, and no buffer is needed.

Arithmetic is float32, every operation rounded by itself; on a GPU the square root and the quotient to two units in the
last place, as exactly rounded ones would cost more instructions than the bytes leave time for. A norm's sum depends on
its order anyway, so that two implementations agree to rounding and not to the bit.

Optionally, at no further pass: gradients divided by a loss scale and multiplied by a clipping factor, the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.portable import narrow
from techniques.large_batch.trust_kernel import RATIOS_MANIFEST, REDUCTION_BYTES, TrustTables

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps):
    return m * inverse_correction / (tl.sqrt(v) * inverse_root_correction + eps) + decay * p


@triton.jit
def _moments(
    parameters, first_moments, second_moments, gradients, offsets, mask, factor,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, inverse_correction, inverse_root_correction, eps,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(first_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(second_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    stored_m = narrow(beta1 * m + one_minus_beta1 * g, first_moments.dtype.element_ty)
    stored_v = narrow(beta2 * v + one_minus_beta2 * (g * g), second_moments.dtype.element_ty)
    tl.store(first_moments + offsets, stored_m, mask=mask)
    tl.store(second_moments + offsets, stored_v, mask=mask)
    # Of the moments as stored: the second pass will see no others.
    m, v = stored_m.to(tl.float32), stored_v.to(tl.float32)
    u = _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps)
    u = tl.where(mask, u, 0.0)  # where nothing was loaded and eps is 0, u is 0 / 0
    return tl.sum(p * p), tl.sum(u * u)


@triton.jit(do_not_specialize=["tensors", "programs"])
def moments_kernel(
    table, blocks, tensors, programs, partials, gradient_scale, clip, found_inf,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, inverse_correction, inverse_root_correction, eps,
    PARAMETER: tl.constexpr, MOMENT: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
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
        weights, updates = _moments(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(m, MOMENT, True) + first,
            multi_tensor.pointer(v, MOMENT, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor,
            beta1, one_minus_beta1, beta2, one_minus_beta2, decay, inverse_correction, inverse_root_correction, eps,
        )  # fmt: skip
        tl.store(partials + tl.program_id(0), weights)
        tl.store(partials + programs + tl.program_id(0), updates)
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        all_weights = tl.zeros((), tl.float32)
        all_updates = tl.zeros((), tl.float32)
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                weights, updates = _moments(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(m, MOMENT, False) + first,
                    multi_tensor.pointer(v, MOMENT, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor,
                    beta1, one_minus_beta1, beta2, one_minus_beta2, decay,
                    inverse_correction, inverse_root_correction, eps,
                )  # fmt: skip
                all_weights += weights
                all_updates += updates
        tl.store(partials + tl.program_id(0), all_weights)
        tl.store(partials + programs + tl.program_id(0), all_updates)


@triton.jit
def _apply(
    parameters, first_moments, second_moments, offsets, mask, seed, tensor, first, step_size,
    decay, inverse_correction, inverse_root_correction, eps, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(first_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(second_moments + offsets, mask=mask, other=0.0).to(tl.float32)
    p = p - step_size * _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps)
    if STOCHASTIC:
        bits = optimizer_parts.random_bits(seed, tensor, first, offsets)
        rounded = optimizer_parts.narrow_stochastic(p, bits, parameters.dtype.element_ty)
    else:
        rounded = narrow(p, parameters.dtype.element_ty)
    tl.store(parameters + offsets, rounded, mask=mask)


@triton.jit(do_not_specialize=["tensors", "seed"])
def apply_kernel(
    table, blocks, tensors, seed, ratios, found_inf, lr, decay, inverse_correction, inverse_root_correction, eps,
    PARAMETER: tl.constexpr, MOMENT: tl.constexpr, STOCHASTIC: tl.constexpr,
    BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    m = multi_tensor.address(table, 1, tensor, tensors)
    v = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 4, tensor, tensors) - first
    step_size = lr * tl.load(ratios + tensor)
    if multi_tensor.vectorizable(p | m | v, remaining, BLOCK):
        _apply(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(m, MOMENT, True) + first,
            multi_tensor.pointer(v, MOMENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), seed, tensor, first, step_size,
            decay, inverse_correction, inverse_root_correction, eps, STOCHASTIC,
        )  # fmt: skip
    else:
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _apply(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(m, MOMENT, False) + first,
                    multi_tensor.pointer(v, MOMENT, False) + first,
                    offsets, offsets < remaining, seed, tensor, first, step_size,
                    decay, inverse_correction, inverse_root_correction, eps, STOCHASTIC,
                )  # fmt: skip


def launch_tables() -> TrustTables:
    """What `lamb_step` keeps between steps: one for each list of parameters."""
    return TrustTables(BLOCK)


@torch.no_grad()
def lamb_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    tables: TrustTables,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool = True,
    adapt: bool = True,
    phi: tuple[float, float] = (0.0, math.inf),
    clip: Tensor | None = None,
    gradient_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | None = None,
) -> None:
    """LAMB's step number ``step`` (from 1), in place: three launches for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address; both moments share a
    dtype. ``tables`` comes from `launch_tables` and belongs to these parameters. Without ``adapt`` ratios are 1.

    ``clip`` (multiplies gradients), ``gradient_scale`` (divides them) and ``found_inf`` (where it is not 0, nothing is
    written) are float32 tensors of one element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, rounds bfloat16 parameters stochastically; without one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    launches = tables.launches((parameters, first_moments, second_moments), (gradients,))
    scalars = (gradient_scale, clip, found_inf)
    for launch in launches:
        dtypes = launch.group.dtypes
        optimizer_parts.check_dtypes(dtypes)
        if dtypes[1] != dtypes[2]:
            raise TypeError(f"the moments are {dtypes[1]} and {dtypes[2]}: give both one dtype")
        optimizer_parts.check_scalars(scalars, launch.group.table.device)
    inverse_correction = 1 / (1 - beta1**step) if bias_correction else 1.0
    inverse_root_correction = 1 / math.sqrt(1 - beta2**step) if bias_correction else 1.0
    direction = (weight_decay, inverse_correction, inverse_root_correction, eps)
    for launch in launches:
        group, partials = launch.group, launch.partials()
        parameter, moment, _, gradient = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            moments_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, group.programs, partials, *scalars,
                beta1, 1 - beta1, beta2, 1 - beta2, *direction,
                PARAMETER=parameter, MOMENT=moment, GRADIENT=gradient, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
            ratios = launch.ratios(partials, low=phi[0], high=phi[1]) if adapt else launch.ones()
            apply_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, optimizer_parts.seed_word(seed), ratios, found_inf,
                learning_rate, *direction,
                PARAMETER=parameter, MOMENT=moment, STOCHASTIC=seed is not None and group.dtypes[0] == torch.bfloat16,
                BLOCK=BLOCK, PIECE=PIECE, num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    for changed in (parameters, first_moments, second_moments):
        increment_version(changed)


_TABLES = {"table": "*i64", "blocks": "*i64", "tensors": "i32"}
_DIRECTION = ("decay", "inverse_correction", "inverse_root_correction", "eps")
_SCALARS = ("gradient_scale", "clip", "found_inf")


def _first_pass(parameter: torch.dtype, moment: torch.dtype, scaled: bool = False) -> Manifest:
    read = [parameter.itemsize, moment.itemsize, moment.itemsize, parameter.itemsize]
    budget = optimizer_parts.streaming_budget(read, [moment.itemsize] * 2, BLOCK, NUM_WARPS)
    rates = ("beta1", "one_minus_beta1", "beta2", "one_minus_beta2")
    return Manifest(
        kernel=moments_kernel,
        signature={
            **_TABLES,
            "programs": "i32",
            "partials": "*fp32",
            **(dict.fromkeys(_SCALARS, "*fp32") if scaled else {}),
            **dict.fromkeys((*rates, *_DIRECTION), "fp32"),
        },
        constants={
            **({} if scaled else dict.fromkeys(_SCALARS)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "MOMENT": optimizer_parts.DTYPES[moment],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks", "partials"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=replace(budget, shared_bytes=max(budget.shared_bytes, REDUCTION_BYTES)),
    )


def _second_pass(
    parameter: torch.dtype, moment: torch.dtype, scaled: bool = False, stochastic: bool = False
) -> Manifest:
    read = [parameter.itemsize, moment.itemsize, moment.itemsize]
    return Manifest(
        kernel=apply_kernel,
        signature={
            **_TABLES,
            "seed": "i32",
            "ratios": "*fp32",
            **({"found_inf": "*fp32"} if scaled else {}),
            **dict.fromkeys(("lr", *_DIRECTION), "fp32"),
        },
        constants={
            **({} if scaled else {"found_inf": None}),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "MOMENT": optimizer_parts.DTYPES[moment],
            "STOCHASTIC": stochastic,
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks", "ratios"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=optimizer_parts.streaming_budget(read, read[:1], BLOCK, NUM_WARPS),
    )


MANIFESTS = {
    "float32:moments": _first_pass(torch.float32, torch.float32),
    "float32:ratios": RATIOS_MANIFEST,
    "float32": _second_pass(torch.float32, torch.float32),
    "float32_scaled:moments": _first_pass(torch.float32, torch.float32, scaled=True),
    "float32_scaled": _second_pass(torch.float32, torch.float32, scaled=True),
    "bfloat16:moments": _first_pass(torch.bfloat16, torch.float32),
    "bfloat16": _second_pass(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _second_pass(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_moments:moments": _first_pass(torch.bfloat16, torch.bfloat16),
    "bfloat16_moments": _second_pass(torch.bfloat16, torch.bfloat16),
}
