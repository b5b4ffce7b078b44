"""Computes a residual stream and a branch times a vector, y = x + s * b, and its gradients: one pass forth, one pass
back.

    forth   y[t, d] <- x[t, d] + s[d] b[t, d]                          x, b read, y written
    back    db[t, d] <- s[d] dy[t, d]    ds[d] <- sum_t dy[t, d] b[t, d]    dy, b read, db written

As :mod:`techniques.shared.residual_kernel`, which takes a number, but each program takes a tile of ROWS tokens and
COLUMNS of the width, and leaves a row of partial sums of ds: 1/ROWS of the branch's numbers, added up afterwards. No
atomics, the same bits every time; y and db of float32 tensors are the same bits as in torch.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.optimizer_parts import NUM_WARPS, OPTIONS
from suite.kernels.portable import narrow

ROWS, COLUMNS = 32, 64
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def _tile(rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Returns the tile's columns, which of them there are, its offsets in 64 bits, and which of these are in the
    tensors."""
    first_row, columns = tl.program_id(0).to(tl.int64) * ROWS, tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_tile = tl.arange(0, ROWS)
    offsets = first_row * width + in_tile[:, None] * width + columns[None, :]
    return columns, columns < width, offsets, (in_tile < rows - first_row)[:, None] & (columns < width)[None, :]


@triton.jit
def scaled_sum_kernel(stream, branch, scale, output, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns, present, offsets, mask = _tile(rows, width, ROWS, COLUMNS)
    s = tl.load(scale + columns, mask=present, other=0.0)
    x = tl.load(stream + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(branch + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + offsets, narrow(x + s[None, :] * b, output.dtype.element_ty), mask=mask)


@triton.jit
def gradients_kernel(
    gradient, branch, scale, of_branch, partials, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    columns, present, offsets, mask = _tile(rows, width, ROWS, COLUMNS)
    s = tl.load(scale + columns, mask=present, other=0.0)
    dy = tl.load(gradient + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(branch + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(of_branch + offsets, narrow(s[None, :] * dy, of_branch.dtype.element_ty), mask=mask)
    tl.store(partials + tl.program_id(0).to(tl.int64) * width + columns, tl.sum(dy * b, axis=0), mask=present)


def scaled_sum(stream: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
    """Computes ``stream`` + ``scale`` * ``branch``, in the wider of the two dtypes, float32 or bfloat16.

    Both are contiguous and of one shape, [..., width]; ``scale`` is float32 [width]. All are on one device.
    """
    output = torch.empty_like(stream, dtype=torch.promote_types(stream.dtype, branch.dtype))
    _launch(scaled_sum_kernel, scale.numel(), stream, branch, scale, output)
    return output


def gradients(gradient: Tensor, branch: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the gradients of the branch, in its dtype, and of the scale, float32 [width], from that of
    :func:`scaled_sum`'s output.

    Tensors as there; the gradient is contiguous.
    """
    of_branch, width = torch.empty_like(branch), scale.numel()
    tiles = triton.cdiv(branch.numel() // width, ROWS) if width else 0
    partials = torch.empty(tiles, width, dtype=torch.float32, device=branch.device)
    _launch(gradients_kernel, width, gradient, branch, scale, of_branch, partials)
    return of_branch, partials.sum(0)


def _launch(kernel: Any, width: int, *tensors: Tensor) -> None:
    if elements := tensors[0].numel():
        rows = elements // width
        with torch.cuda.device_of(tensors[0]):
            kernel[(triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))](
                *tensors, rows, width, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=NUM_WARPS, **OPTIONS
            )


def _manifest(kernel: Any, dtypes: Sequence[torch.dtype]) -> Manifest:
    """Describes a compilation, where ``dtypes`` are those of the two matrices that are read and of the one that is
    written."""
    sizes, constants = {"rows": "i32", "width": "i32"}, {"ROWS": ROWS, "COLUMNS": COLUMNS}
    pointers = [name for name in kernel.arg_names if name not in (*sizes, *constants)]
    matrices = [name for name in pointers if name not in ("scale", "partials")]
    types = dict(zip(matrices, (POINTERS[dtype] for dtype in dtypes), strict=True))
    accesses = ROWS * COLUMNS // (NUM_WARPS * 32 * 16)  # of a thread, 16 bytes each, a byte of an element
    of_scale = 4 // min(dtype.itemsize for dtype in dtypes)  # a thread's columns are those of 16 bytes of a matrix
    read, written = sum(dtype.itemsize for dtype in dtypes[:2]), dtypes[2].itemsize
    return Manifest(
        kernel=kernel,
        signature={name: types.get(name, "*fp32") for name in pointers} | sizes,
        constants=constants,
        elements_per_program=ROWS * COLUMNS,
        aligned=(*pointers, "width"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=64,
            shared_bytes=6 * 1024,
            wide_loads=accesses * read + of_scale,
            wide_stores=accesses * written,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (read + written),
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    name + back: _manifest(kernel, dtypes)
    for name, dtypes_forth, dtypes_back in (
        ("float32", (F32, F32, F32), (F32, F32, F32)),
        ("bfloat16", (BF16, BF16, BF16), (BF16, BF16, BF16)),
        ("autocast", (F32, BF16, F32), (F32, BF16, BF16)),
    )
    for back, kernel, dtypes in (("", scaled_sum_kernel, dtypes_forth), (":back", gradients_kernel, dtypes_back))
}
