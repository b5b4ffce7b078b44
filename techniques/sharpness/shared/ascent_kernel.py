"""Makes SAM's ascent (2010.01412, Algorithm 1) in three launches for any number of tensors; there is no way back to
launch.

    1   partial sums of ||g||^2 over all tensors              4 bytes a float32 parameter
    2   their sum, and rho / (||g|| + 1e-12): one program     0
    3   moved <- w + rho / (||g|| + 1e-12) g                 12

Parameters then point to ``moved``, and afterwards to w again: 16 bytes in all. A fixed number of programs leaves one
partial sum each, which are reduced once, by one program: no atomics, the same bits every time. Weights and gradients
stay as they are. Arithmetic is float32.

Optionally bfloat16 weights are rounded stochastically. An element's step is of the size rho / sqrt(elements), usually
below half a unit in the last place, and rounding to nearest would lose most of the way along the gradient.
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

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Budget, Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import launch_tables as launch_tables

GUARD = tl.constexpr(1e-12)  # of the authors' code, for a zero gradient
NORM_OPTIONS = {"enable_fp_fusion": True}  # a sum's order differs between a GPU and the interpreter anyway


@triton.jit(do_not_specialize=["count"])
def factor_kernel(partials, count, rho, factor, PARTIALS: tl.constexpr):
    norm = tl.sqrt_rn(optimizer_parts.total(partials, count, PARTIALS))
    tl.store(factor, tl.where(norm < float("inf"), tl.div_rn(rho, norm + GUARD), 0.0))  # of NaN, too


@triton.jit
def _move(pointers, place, factor, seed):
    parameters, gradients, moved = pointers
    p = optimizer_parts.load(parameters, place)
    p = tl.where(factor == 0, p, p + factor * optimizer_parts.load(gradients, place))  # 0 times infinity is NaN
    optimizer_parts.store(moved, place, p, seed)


@triton.jit(do_not_specialize=["tensors", "seed"])
def ascend_kernel(table, blocks, tensors, seed, factor, DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    multi_tensor.over_block(_move, (tl.load(factor), seed), table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


@torch.no_grad()
def ascend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: float,
    tables: LaunchTables,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    """Moves ``parameters`` by ``rho`` along their joint normalised gradient, in memory of their own.

    Three launches; where there are several combinations of dtypes, two more for each. Tensors are contiguous, float32
    or bfloat16 each, all on one device, in columns of equal shape. ``tables`` comes from `launch_tables`.

    Gradients may be scaled: a positive factor does not change their direction. Where their norm is not finite the
    values are the parameters'. The second gradient is then this one again, and whatever keeps one that is not finite
    from the update sees it: the host need not wait to know now.

    ``seed``, different each step, rounds bfloat16 values stochastically; without one they round to nearest. The
    step is then rho along the gradient, and across it random by up to a unit in the last place an element.

    Raises TypeError for other dtypes, ValueError for several devices, and what `LaunchTables.groups` raises.
    """
    moved = [torch.empty_like(parameter) for parameter in parameters]
    groups = optimizer_parts.groups(tables, (parameters,), (gradients, moved))
    if not groups:
        return moved
    device = groups[0].table.device
    if {group.table.device for group in groups} != {device}:
        raise ValueError("the parameters are on several devices, and their norm is one: give those of one device")
    share = max(1, optimizer_parts.PARTIALS // len(groups))
    grids = [min(share, group.programs) for group in groups]
    partials = torch.empty(sum(grids), dtype=torch.float32, device=device)
    factor = torch.empty(1, dtype=torch.float32, device=device)
    with torch.cuda.device_of(partials):
        for group, grid, sums in zip(groups, grids, partials.split(grids)):
            optimizer_parts.square_sums_kernel[(grid,)](
                group.table,
                group.blocks,
                group.tensors,
                group.programs,
                sums,
                ROW=1,
                LISTS=3,
                DTYPE=optimizer_parts.DTYPES[group.dtypes[1]],
                BLOCK=optimizer_parts.BLOCK,
                num_warps=optimizer_parts.NUM_WARPS,
                **NORM_OPTIONS,
            )
        factor_kernel[(1,)](
            partials,
            len(partials),
            float(rho),
            factor,
            PARTIALS=optimizer_parts.PARTIALS,
            num_warps=optimizer_parts.NUM_WARPS,
            **optimizer_parts.OPTIONS,
        )
        for group in groups:
            optimizer_parts.launch(ascend_kernel, group, {}, seed=optimizer_parts.seed_word(seed), factor=factor)
    return moved


def _norm(dtype: torch.dtype) -> Manifest:
    manifest = optimizer_parts.manifest(
        optimizer_parts.square_sums_kernel,
        (dtype,) * 3,
        read=(1,),
        written=(),
        sums=1,
        ROW=1,
        LISTS=3,
        DTYPE=optimizer_parts.DTYPES[dtype],
    )
    return replace(manifest, options=NORM_OPTIONS)


FACTOR = Manifest(
    kernel=factor_kernel,
    signature={"partials": "*fp32", "count": "i32", "rho": "fp32", "factor": "*fp32"},
    constants={"PARTIALS": optimizer_parts.PARTIALS},
    elements_per_program=optimizer_parts.PARTIALS,
    aligned=("partials", "factor"),
    num_warps=optimizer_parts.NUM_WARPS,
    options=optimizer_parts.OPTIONS,
    budget=Budget(registers=64, shared_bytes=optimizer_parts.reduction_bytes(1)),
)


def _ascend(dtype: torch.dtype, stochastic: bool = False) -> Manifest:
    return optimizer_parts.manifest(
        ascend_kernel, (dtype,) * 3, read=(0, 1), written=(2,), seeded=stochastic, on_device=("factor",)
    )


MANIFESTS = {
    name: manifest(dtype)
    for dtype, word in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
    for name, manifest in ((f"ascend_{word}:norm", _norm), (f"ascend_{word}", _ascend))
} | {"ascend_float32:factor": FACTOR, "ascend_bfloat16_stochastic": _ascend(torch.bfloat16, stochastic=True)}
