"""Makes random masking in one launch each way: rank the noise, gather the tokens that are kept, add their positions.

    forth   y[place] <- x[token] + p[token]      kept tokens and positions read, y written
    back    dx[token] <- dy[place], or 0         dy read, dx written, and dp, the sum over the batch

Torch's operators sort, write and read the order twice, write all tokens with their positions and read back those that
are kept. Here a token's place is how many values of its row are smaller, or equal and before it; the program that
copies the token counts them, a few hundred comparisons for some thousand bytes. Forth it leaves the places for the way
back, where each program has the same token of all examples, or of some where no positions ask for a sum: no atomics,
the same bits every time.

Tokens may be a view with any strides of rows and examples (one token for all, a slice behind a class token), as long as
a token's own values are adjacent. Sums are float32.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.portable import narrow

ROWS, COLUMNS = 16, 128  # of a program's tile
COMPARED = 64  # values of the noise at once
NUM_WARPS = 4
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def kept_kernel(
    tokens,
    positions,
    noise,
    output,
    places,
    length,
    width,
    leading,
    start,
    stop,
    example_stride,
    token_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COMPARED: tl.constexpr,
):
    example = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    behind = token - leading
    noisy = (behind >= 0) & (behind < length)
    own = tl.load(noise + example * length + behind, mask=noisy, other=0.0)
    rank = tl.zeros((ROWS,), dtype=tl.int32)
    for first in range(0, length, COMPARED):
        other = first + tl.arange(0, COMPARED)
        value = tl.load(noise + example * length + other, mask=other < length, other=float("inf"))
        equal_before = (value[None, :] == own[:, None]) & (other[None, :] < behind[:, None])
        before = (value[None, :] < own[:, None]) | equal_before
        rank += tl.sum(before.to(tl.int32), axis=1)
    chosen = noisy & (rank >= start) & (rank < stop) | (behind < 0)
    place = tl.where(behind < 0, token, tl.where(chosen, rank - start + leading, -1))
    if tl.program_id(2) == 0:
        tl.store(places + example * (leading + length) + token, place, mask=behind < length)
    mask = chosen[:, None] & (column < width)[None, :]
    source = tokens + example * example_stride + token[:, None].to(tl.int64) * token_stride + column[None, :]
    y = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    if positions is not None:
        y += tl.load(positions + token[:, None].to(tl.int64) * width + column[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
    row = example * (leading + stop - start) + place
    tl.store(output + row[:, None] * width + column[None, :], narrow(y, output.dtype.element_ty), mask=mask)


@triton.jit
def scattered_kernel(
    gradient,
    places,
    of_tokens,
    of_positions,
    examples,
    total,
    count,
    width,
    examples_of_a_program,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(2) * examples_of_a_program
    summed = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in range(start, tl.minimum(start + examples_of_a_program, examples), ROWS):
        example = (first + tl.arange(0, ROWS)).to(tl.int64)
        there = example < examples
        place = tl.load(places + example * total + token, mask=there, other=-1)
        inside = (column < width)[None, :]
        source = gradient + (example * count + place)[:, None] * width + column[None, :]
        dy = tl.load(source, mask=(place >= 0)[:, None] & inside, other=0.0).to(tl.float32)
        target = of_tokens + (example * total + token)[:, None] * width + column[None, :]
        tl.store(target, narrow(dy, of_tokens.dtype.element_ty), mask=there[:, None] & inside)
        if of_positions is not None:
            summed += tl.sum(dy, axis=0)
    if of_positions is not None:
        target = of_positions + token.to(tl.int64) * width + column
        tl.store(target, narrow(summed, of_positions.dtype.element_ty), mask=column < width)


def gathered(
    tokens: Tensor, positions: Tensor | None, noise: Tensor, places: range, leading: int
) -> tuple[Tensor, Tensor]:
    """Computes :func:`kept.kept_tokens`, and int32 [batch, leading + tokens]: each token's place in it, or -1.

    ``tokens`` and ``positions`` are float32 or bfloat16, ``noise`` is float32. All are on one device.
    """
    batch, total, width = tokens.shape
    tokens = tokens if tokens.stride(2) == 1 else tokens.contiguous()
    dtype = tokens.dtype if positions is None else torch.promote_types(tokens.dtype, positions.dtype)
    output = tokens.new_empty(batch, leading + len(places), width, dtype=dtype)
    rows = torch.empty(batch, total, dtype=torch.int32, device=tokens.device)
    grid = (batch, triton.cdiv(total, ROWS), triton.cdiv(width, COLUMNS))
    if output.numel():
        with torch.cuda.device_of(tokens):
            kept_kernel[grid](
                tokens,
                None if positions is None else positions.contiguous(),
                noise.contiguous(),
                output,
                rows,
                total - leading,
                width,
                leading,
                places.start,
                places.stop,
                tokens.stride(0),
                tokens.stride(1),
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                COMPARED=COMPARED,
                num_warps=NUM_WARPS,
            )
    return output, rows


def scattered(
    gradient: Tensor, rows: Tensor, of_tokens: torch.dtype, of_positions: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Computes gradients of the tokens [batch, leading + tokens, width] and, in a dtype, of the positions [leading +
    tokens, width], from that of what was kept, which is contiguous, and each token's place in it."""
    (batch, count, width), total = gradient.shape, rows.shape[1]
    tokens = gradient.new_empty(batch, total, width, dtype=of_tokens)
    positions = None if of_positions is None else gradient.new_empty(total, width, dtype=of_positions)
    row = ROWS if positions is None else max(1, batch)
    if tokens.numel():
        with torch.cuda.device_of(gradient):
            scattered_kernel[total, triton.cdiv(width, COLUMNS), triton.cdiv(batch, row)](
                gradient,
                rows,
                tokens,
                positions,
                batch,
                total,
                count,
                width,
                row,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                num_warps=NUM_WARPS,
            )
    return tokens, positions


def _manifest(kernel: Any, pointers: Mapping[str, torch.dtype], written: str, absent: Sequence[str] = ()) -> Manifest:
    """Describes a compilation, where ``pointers`` are the dtypes of the streams, ``written`` the large one of these
    that is no input; ``absent`` ones are None. Static counts: the loop over the noise runs once for each COMPARED
    tokens."""
    constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "COMPARED": COMPARED} | dict.fromkeys(absent)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {name: POINTERS[dtype] for name, dtype in pointers.items()} | {"noise": "*fp32", "places": "*i32"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name not in constants}
    accesses = ROWS * COLUMNS // (NUM_WARPS * 32 * 16)  # of a thread, 16 bytes each, a byte of an element
    summed = {"of_positions"}  # a row for a program, and none for each of its elements
    read = sum(dtype.itemsize for name, dtype in pointers.items() if name not in {written, *summed})
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants=constants,
        elements_per_program=ROWS * COLUMNS,
        aligned=tuple(name for name in signature if name in {*types, "width", "example_stride", "token_stride"}),
        num_warps=NUM_WARPS,
        budget=Budget(
            registers=64,
            shared_bytes=ROWS * COLUMNS * 4,
            wide_loads=accesses * read,
            wide_stores=accesses * pointers[written].itemsize,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (read + pointers[written].itemsize),
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    "float32": _manifest(kept_kernel, {"tokens": F32, "positions": F32, "output": F32}, "output"),
    "float32:back": _manifest(scattered_kernel, {"gradient": F32, "of_tokens": F32, "of_positions": F32}, "of_tokens"),
    "bfloat16": _manifest(kept_kernel, {"tokens": BF16, "output": BF16}, "output", absent=["positions"]),
    "bfloat16:back": _manifest(
        scattered_kernel, {"gradient": BF16, "of_tokens": BF16}, "of_tokens", absent=["of_positions"]
    ),
    "autocast": _manifest(kept_kernel, {"tokens": BF16, "positions": F32, "output": F32}, "output"),
    "autocast:back": _manifest(
        scattered_kernel, {"gradient": F32, "of_tokens": BF16, "of_positions": F32}, "of_tokens"
    ),
}
