"""SAM's ascent (2010.01412, Algorithm 1) in two launches for any number of tensors, and the way back in one.

    1   partial sums of ||g||^2 over all tensors                       4 bytes a float32 parameter
    2   copy <- w,  w <- w + rho / (||g|| + 1e-12) g                  16
        restore: w <- copy                                             8

The second launch could not know the norm within the first. So a fixed number of programs leaves one partial sum each,
few enough that every program of the second launch adds them all up: no third launch, no atomics, the same bits every
time. Gradients stay as they are (torch's operators overwrite them with the step). Arithmetic is float32.

Updates are in place, hence no autotuning: trial runs would move the weights.
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
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.portable import narrow

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
GUARD = tl.constexpr(1e-12)  # of the authors' code, for a zero gradient
NORM_OPTIONS = {"enable_fp_fusion": True}  # a sum's order differs between a GPU and the interpreter anyway
OPTIONS = {"enable_fp_fusion": False}
REDUCTION_BYTES = 1024 + 4 * NUM_WARPS  # a word of each warp, beside what Hopper keeps for itself


@triton.jit
def _move(parameters, gradients, copies, offsets, mask, factor):
    stored = tl.load(parameters + offsets, mask=mask, other=0.0)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32)
    p = stored.to(tl.float32) + factor * g
    tl.store(copies + offsets, stored, mask=mask)
    tl.store(parameters + offsets, narrow(p, parameters.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors", "count"])
def ascend_kernel(
    table, blocks, tensors, partials, count, rho,
    PARAMETER: tl.constexpr, GRADIENT: tl.constexpr, PARTIALS: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    g = multi_tensor.address(table, 1, tensor, tensors)
    copy = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 3, tensor, tensors) - first
    factor = tl.div_rn(rho, tl.sqrt_rn(optimizer_parts.total(partials, count, PARTIALS)) + GUARD)
    if multi_tensor.vectorizable(p | g | copy, remaining, BLOCK):
        _move(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            multi_tensor.pointer(copy, PARAMETER, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor,
        )  # fmt: skip
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _move(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    multi_tensor.pointer(copy, PARAMETER, False) + first,
                    offsets, offsets < remaining, factor,
                )  # fmt: skip


@triton.jit(do_not_specialize=["tensors"])
def restore_kernel(table, blocks, tensors, DTYPE: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    copy = multi_tensor.address(table, 1, tensor, tensors)
    remaining = multi_tensor.elements(table, 2, tensor, tensors) - first
    if multi_tensor.vectorizable(p | copy, remaining, BLOCK):
        offsets = tl.arange(0, BLOCK)
        stored = tl.load(multi_tensor.pointer(copy, DTYPE, True) + first + offsets)
        tl.store(multi_tensor.pointer(p, DTYPE, True) + first + offsets, stored)
    else:
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                mask = offsets < remaining
                stored = tl.load(multi_tensor.pointer(copy, DTYPE, False) + first + offsets, mask=mask, other=0.0)
                tl.store(multi_tensor.pointer(p, DTYPE, False) + first + offsets, stored, mask=mask)


def launch_tables() -> LaunchTables:
    """What `ascend` or `restore` keeps between calls for the same parameters."""
    return LaunchTables(BLOCK)


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float, tables: LaunchTables) -> list[Tensor]:
    """Moves ``parameters`` by ``rho`` along their joint normalised gradient; returns copies of what they were.

    Two launches; two for each combination of dtypes where there are several. Tensors are contiguous, float32 or
    bfloat16 each, all on one device, in columns of equal shape. ``tables`` comes from `launch_tables`.

    Raises TypeError for other dtypes, ValueError for several devices, and what `LaunchTables.groups` raises.
    """
    copies = [torch.empty_like(parameter) for parameter in parameters]
    groups = tables.groups((parameters,), (gradients, copies))
    for group in groups:
        optimizer_parts.check_dtypes(group.dtypes)
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
                ROW=1, LISTS=3, DTYPE=optimizer_parts.DTYPES[group.dtypes[1]], BLOCK=BLOCK,
                num_warps=NUM_WARPS, **NORM_OPTIONS,
            )  # fmt: skip
        for group in groups:
            parameter, gradient, _ = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
            ascend_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, partials, len(partials), rho,
                PARAMETER=parameter, GRADIENT=gradient, PARTIALS=optimizer_parts.PARTIALS, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    increment_version(parameters)
    return copies


@torch.no_grad()
def restore(parameters: Sequence[Tensor], copies: Sequence[Tensor], tables: LaunchTables) -> None:
    """Copies ``copies`` back to ``parameters``: one launch for each dtype present.

    Raises TypeError for dtypes other than float32 and bfloat16, or where a copy has another than its parameter, and
    what `LaunchTables.groups` raises. ``tables`` is not `ascend`'s, which describes three lists.
    """
    groups = tables.groups((parameters,), (copies,))
    for group in groups:
        optimizer_parts.check_dtypes(group.dtypes)
        if group.dtypes[0] != group.dtypes[1]:
            raise TypeError(f"copies are {group.dtypes[1]} of {group.dtypes[0]} parameters: give what ascend returned")
    for group in groups:
        with torch.cuda.device_of(group.table):
            restore_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors,
                DTYPE=optimizer_parts.DTYPES[group.dtypes[0]], BLOCK=BLOCK, PIECE=PIECE, num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    increment_version(parameters)


_TABLES = {"table": "*i64", "blocks": "*i64", "tensors": "i32"}


def _norm(dtype: torch.dtype) -> Manifest:
    return Manifest(
        kernel=optimizer_parts.square_sums_kernel,
        signature={**_TABLES, "programs": "i32", "partials": "*fp32"},
        constants={"ROW": 1, "LISTS": 3, "DTYPE": optimizer_parts.DTYPES[dtype], "BLOCK": BLOCK},
        elements_per_program=BLOCK,
        aligned=("table", "blocks"),
        num_warps=NUM_WARPS,
        options=NORM_OPTIONS,
        budget=Budget(
            registers=64,
            shared_bytes=REDUCTION_BYTES,
            wide_loads=BLOCK // (NUM_WARPS * 32 * 16) * dtype.itemsize,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * dtype.itemsize,
        ),
    )


def _ascend(dtype: torch.dtype) -> Manifest:
    size = dtype.itemsize
    return Manifest(
        kernel=ascend_kernel,
        signature={**_TABLES, "partials": "*fp32", "count": "i32", "rho": "fp32"},
        constants={
            "PARAMETER": optimizer_parts.DTYPES[dtype],
            "GRADIENT": optimizer_parts.DTYPES[dtype],
            "PARTIALS": optimizer_parts.PARTIALS,
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks", "partials"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=replace(
            optimizer_parts.streaming_budget((size, size), (size, size), BLOCK, NUM_WARPS), shared_bytes=REDUCTION_BYTES
        ),
    )


def _restore(dtype: torch.dtype) -> Manifest:
    return Manifest(
        kernel=restore_kernel,
        signature=_TABLES,
        constants={"DTYPE": optimizer_parts.DTYPES[dtype], "BLOCK": BLOCK, "PIECE": PIECE},
        elements_per_program=BLOCK,
        aligned=("table", "blocks"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=optimizer_parts.streaming_budget((dtype.itemsize,), (dtype.itemsize,), BLOCK, NUM_WARPS),
    )


MANIFESTS = {
    name: manifest(dtype)
    for dtype, word in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
    for name, manifest in ((f"ascend_{word}:norm", _norm), (f"ascend_{word}", _ascend), (f"restore_{word}", _restore))
}
