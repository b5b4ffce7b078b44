"""LARS's update (1708.03888, Algorithm 1) in two passes: the norms of each tensor, then momentum and weights.

    pass 1    leaves ||w||, ||g + c w||        c = 0 (paper, timm) or beta (moco, optax)
    pass 2    v <- m v + inside ratio (g + beta w)        w <- w - outside v

The learning rate is ``inside`` or ``outside``, the other is 1. Pass 1 reads 8 bytes a float32 parameter, pass 2 reads
12 and writes 8: 28 in all. Tensors that do not adapt take the second pass only.

Arithmetic is float32, every operation rounded by itself. A norm's sum depends on its order, so that two implementations
agree to rounding and not to the bit.

Optionally, at no further pass: gradients divided by a loss scale and multiplied by a clipping factor, the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

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
from techniques.large_batch.lars.technique import INSIDE, SEPARATE, TIMM_EPS, Variant
from techniques.large_batch.trust_kernel import RATIOS_MANIFEST, REDUCTION_BYTES, TrustTables

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _squares(parameters, gradients, offsets, mask, factor, coupled_decay):
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    u = g + coupled_decay * p
    return tl.sum(p * p), tl.sum(u * u)


@triton.jit(do_not_specialize=["tensors", "programs"])
def norms_kernel(
    table, blocks, tensors, programs, partials, gradient_scale, clip, found_inf, coupled_decay,
    PARAMETER: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(gradient_scale, clip)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    g = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 3, tensor, tensors) - first
    if multi_tensor.vectorizable(p | g, remaining, BLOCK):
        weights, updates = _squares(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor, coupled_decay,
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
                weights, updates = _squares(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor, coupled_decay,
                )  # fmt: skip
                all_weights += weights
                all_updates += updates
        tl.store(partials + tl.program_id(0), all_weights)
        tl.store(partials + programs + tl.program_id(0), all_updates)


@triton.jit
def _apply(
    parameters, momenta, gradients, offsets, mask, factor, seed, tensor, first,
    momentum, decay, inside, outside, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(momenta + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    v = momentum * v + inside * (g + decay * p)
    p = p - outside * v
    if STOCHASTIC:
        bits = optimizer_parts.random_bits(seed, tensor, first, offsets)
        rounded = optimizer_parts.narrow_stochastic(p, bits, parameters.dtype.element_ty)
    else:
        rounded = narrow(p, parameters.dtype.element_ty)
    tl.store(parameters + offsets, rounded, mask=mask)
    tl.store(momenta + offsets, narrow(v, momenta.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors", "seed"])
def apply_kernel(
    table, blocks, tensors, seed, ratios, gradient_scale, clip, found_inf, momentum, decay, inside, outside,
    PARAMETER: tl.constexpr, MOMENTUM: tl.constexpr, GRADIENT: tl.constexpr, STOCHASTIC: tl.constexpr,
    BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(gradient_scale, clip)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    v = multi_tensor.address(table, 1, tensor, tensors)
    g = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 3, tensor, tensors) - first
    inside = inside * tl.load(ratios + tensor)
    if multi_tensor.vectorizable(p | v | g, remaining, BLOCK):
        _apply(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(v, MOMENTUM, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor, seed, tensor, first,
            momentum, decay, inside, outside, STOCHASTIC,
        )  # fmt: skip
    else:
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _apply(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(v, MOMENTUM, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor, seed, tensor, first,
                    momentum, decay, inside, outside, STOCHASTIC,
                )  # fmt: skip


def launch_tables() -> TrustTables:
    """What `lars_step` keeps between steps: one for each list of parameters."""
    return TrustTables(BLOCK)


@torch.no_grad()
def lars_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    tables: TrustTables,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    trust_coefficient: float = 1e-3,
    variant: Variant = "paper",
    adapt: bool = True,
    gradient_scale: Tensor | None = None,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | None = None,
) -> None:
    """One LARS step, in place: three launches for each combination of dtypes present, one without ``adapt``.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address. ``tables`` comes from
    `launch_tables` and belongs to these parameters.

    ``gradient_scale`` (divides gradients), ``clip`` (multiplies them) and ``found_inf`` (where it is not 0, nothing is
    written) are float32 tensors of one element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, rounds bfloat16 parameters stochastically; without one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    launches = tables.launches((parameters, momenta), (gradients,))
    scalars = (gradient_scale, clip, found_inf)
    for launch in launches:
        optimizer_parts.check_dtypes(launch.group.dtypes)
        optimizer_parts.check_scalars(scalars, launch.group.table.device)
    separate = variant in SEPARATE
    inside, outside = (learning_rate, 1.0) if variant in INSIDE else (1.0, learning_rate)
    for launch in launches:
        group = launch.group
        parameter, velocity, gradient = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            if adapt:
                partials = launch.partials()
                norms_kernel[(group.programs,)](
                    group.table, group.blocks, group.tensors, group.programs, partials, *scalars,
                    0.0 if separate else weight_decay,
                    PARAMETER=parameter, GRADIENT=gradient, BLOCK=BLOCK, PIECE=PIECE, num_warps=NUM_WARPS, **OPTIONS,
                )  # fmt: skip
                ratios = launch.ratios(
                    partials,
                    coefficient=trust_coefficient,
                    decay=weight_decay if separate else 0.0,
                    eps=TIMM_EPS if variant == "timm" else 0.0,
                )
            else:
                ratios = launch.ones()
            apply_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, optimizer_parts.seed_word(seed), ratios, *scalars,
                momentum, weight_decay, inside, outside,
                PARAMETER=parameter, MOMENTUM=velocity, GRADIENT=gradient,
                STOCHASTIC=seed is not None and group.dtypes[0] == torch.bfloat16,
                BLOCK=BLOCK, PIECE=PIECE, num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    increment_version(parameters)
    increment_version(momenta)


_TABLES = {"table": "*i64", "blocks": "*i64", "tensors": "i32"}
_SCALARS = ("gradient_scale", "clip", "found_inf")


def _norms(parameter: torch.dtype, scaled: bool = False) -> Manifest:
    budget = optimizer_parts.streaming_budget([parameter.itemsize] * 2, [], BLOCK, NUM_WARPS)
    return Manifest(
        kernel=norms_kernel,
        signature={
            **_TABLES,
            "programs": "i32",
            "partials": "*fp32",
            **(dict.fromkeys(_SCALARS, "*fp32") if scaled else {}),
            "coupled_decay": "fp32",
        },
        constants={
            **({} if scaled else dict.fromkeys(_SCALARS)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks", "partials"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=replace(budget, shared_bytes=REDUCTION_BYTES),
    )


def _second_pass(
    parameter: torch.dtype, momentum: torch.dtype, scaled: bool = False, stochastic: bool = False
) -> Manifest:
    read = [parameter.itemsize, momentum.itemsize, parameter.itemsize]
    return Manifest(
        kernel=apply_kernel,
        signature={
            **_TABLES,
            "seed": "i32",
            "ratios": "*fp32",
            **(dict.fromkeys(_SCALARS, "*fp32") if scaled else {}),
            **dict.fromkeys(("momentum", "decay", "inside", "outside"), "fp32"),
        },
        constants={
            **({} if scaled else dict.fromkeys(_SCALARS)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "MOMENTUM": optimizer_parts.DTYPES[momentum],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
            "STOCHASTIC": stochastic,
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks", "ratios"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=optimizer_parts.streaming_budget(read, read[:2], BLOCK, NUM_WARPS),
    )


MANIFESTS = {
    "float32:norms": _norms(torch.float32),
    "float32:ratios": RATIOS_MANIFEST,
    "float32": _second_pass(torch.float32, torch.float32),
    "float32_scaled:norms": _norms(torch.float32, scaled=True),
    "float32_scaled": _second_pass(torch.float32, torch.float32, scaled=True),
    "bfloat16:norms": _norms(torch.bfloat16),
    "bfloat16": _second_pass(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _second_pass(torch.bfloat16, torch.bfloat16, stochastic=True),
    "bfloat16_float32_momentum": _second_pass(torch.bfloat16, torch.float32),
}
