"""SAM's ascent (2010.01412, Algorithm 1) in two launches for any number of tensors, and the way back in one.

    1   partial sums of ||g||^2 over all tensors                       4 bytes a float32 parameter
    2   copy <- w,  w <- w + rho / (||g|| + 1e-12) g                  16
        restore: w <- copy                                             8

The second launch could not know the norm within the first. So a fixed number of programs leaves one partial sum each,
few enough that every program of the second launch adds them all up: no third launch, no atomics, the same bits every
time. Gradients stay as they are (torch's operators overwrite them with the step). Arithmetic is float32.

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
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import launch_tables as launch_tables

GUARD = tl.constexpr(1e-12)  # of the authors' code, for a zero gradient
NORM_OPTIONS = {"enable_fp_fusion": True}  # a sum's order differs between a GPU and the interpreter anyway


@triton.jit
def _move(pointers, place, factor, seed):
    parameters, gradients, copies = pointers
    _, _, offsets, mask = place
    stored = tl.load(parameters + offsets, mask=mask, other=0.0)
    tl.store(copies + offsets, stored, mask=mask)
    p = stored.to(tl.float32)
    p = tl.where(factor == 0, p, p + factor * optimizer_parts.load(gradients, place))  # 0 times infinity is NaN
    optimizer_parts.store(parameters, place, p, seed)


@triton.jit(do_not_specialize=["tensors", "seed", "count"])
def ascend_kernel(
    table, blocks, tensors, seed, partials, count, rho,
    PARTIALS: tl.constexpr, DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    norm = tl.sqrt_rn(optimizer_parts.total(partials, count, PARTIALS))
    factor = tl.where(norm < float("inf"), tl.div_rn(rho, norm + GUARD), 0.0)  # of NaN, too
    multi_tensor.over_block(_move, (factor, seed), table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


@triton.jit
def _copy(pointers, place):
    parameters, copies = pointers
    _, _, offsets, mask = place
    tl.store(parameters + offsets, tl.load(copies + offsets, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["tensors"])
def restore_kernel(
    table, blocks, tensors, DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    multi_tensor.over_block(_copy, (), table, blocks, tensors, (0, 1), DTYPES, BLOCK, PIECE)


@torch.no_grad()
def ascend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: float,
    tables: LaunchTables,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    """Moves ``parameters`` by ``rho`` along their joint normalised gradient; returns copies of what they were.

    Two launches; two for each combination of dtypes where there are several. Tensors are contiguous, float32 or
    bfloat16 each, all on one device, in columns of equal shape. ``tables`` comes from `launch_tables`.

    Gradients may be scaled: a positive factor does not change their direction. Where their norm is not finite the
    parameters stay as they are. The second gradient is then this one again, and whatever keeps one that is not finite
    from the update sees it: the host need not wait to know now.

    ``seed``, different each step, rounds bfloat16 parameters stochastically; without one they round to nearest. The
    step is then rho along the gradient, and across it random by up to a unit in the last place an element.

    Raises TypeError for other dtypes, ValueError for several devices, and what `LaunchTables.groups` raises.
    """
    copies = [torch.empty_like(parameter) for parameter in parameters]
    groups = optimizer_parts.groups(tables, (parameters,), (gradients, copies))
    if not groups:
        return copies
    device = groups[0].table.device
    if {group.table.device for group in groups} != {device}:
        raise ValueError("the parameters are on several devices, and their norm is one: give those of one device")
    share = max(1, optimizer_parts.PARTIALS // len(groups))
    grids = [min(share, group.programs) for group in groups]
    partials = torch.empty(sum(grids), dtype=torch.float32, device=device)
    with torch.cuda.device_of(partials):
        for group, grid, sums in zip(groups, grids, partials.split(grids)):
            optimizer_parts.square_sums_kernel[(grid,)](
                group.table, group.blocks, group.tensors, group.programs, sums,
                ROW=1, LISTS=3, DTYPE=optimizer_parts.DTYPES[group.dtypes[1]], BLOCK=optimizer_parts.BLOCK,
                num_warps=optimizer_parts.NUM_WARPS, **NORM_OPTIONS,
            )  # fmt: skip
        for group in groups:
            optimizer_parts.launch(
                ascend_kernel, group, {"rho": rho}, seed=optimizer_parts.seed_word(seed),
                partials=partials, count=len(partials), PARTIALS=optimizer_parts.PARTIALS,
            )  # fmt: skip
    optimizer_parts.note_change(parameters)
    return copies


@torch.no_grad()
def restore(parameters: Sequence[Tensor], copies: Sequence[Tensor], tables: LaunchTables) -> None:
    """Copies ``copies`` back to ``parameters``: one launch for each dtype present.

    Raises TypeError for dtypes other than float32 and bfloat16, or where a copy has another than its parameter, and
    what `LaunchTables.groups` raises. ``tables`` is not `ascend`'s, which describes three lists.
    """
    groups = optimizer_parts.groups(tables, (parameters,), (copies,))
    for group in groups:
        if group.dtypes[0] != group.dtypes[1]:
            raise TypeError(f"copies are {group.dtypes[1]} of {group.dtypes[0]} parameters: give what ascend returned")
    for group in groups:
        optimizer_parts.launch(restore_kernel, group, {})
    optimizer_parts.note_change(parameters)


def _norm(dtype: torch.dtype) -> Manifest:
    manifest = optimizer_parts.manifest(
        optimizer_parts.square_sums_kernel, (dtype,) * 3, read=(1,), written=(), sums=1,
        ROW=1, LISTS=3, DTYPE=optimizer_parts.DTYPES[dtype],
    )  # fmt: skip
    return replace(manifest, options=NORM_OPTIONS)


def _ascend(dtype: torch.dtype, stochastic: bool = False) -> Manifest:
    return optimizer_parts.manifest(
        ascend_kernel, (dtype,) * 3, read=(0, 1), written=(0, 2), seeded=stochastic, sums=1,
        PARTIALS=optimizer_parts.PARTIALS,
    )  # fmt: skip


def _restore(dtype: torch.dtype) -> Manifest:
    return optimizer_parts.manifest(restore_kernel, (dtype,) * 2, read=(1,), written=(0,))


MANIFESTS = {
    name: manifest(dtype)
    for dtype, word in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
    for name, manifest in ((f"ascend_{word}:norm", _norm), (f"ascend_{word}", _ascend), (f"restore_{word}", _restore))
} | {"ascend_bfloat16_stochastic": _ascend(torch.bfloat16, stochastic=True)}
