"""Has kernels of LayerNorm, GELU and softmax that write Mesa's codes beside their output, and go back from codes: a
pass each way.

    forth   y = layer(x), codes of x (of softmax: of y), the least and largest number of each group      x read once
    back    x' = beta + q alpha / 255 in registers, then the layer's gradient                            q, dy read

A byte for each element beside the layer's own traffic, where torch's operators save the whole tensor, and a pass of its
own would read it again. What a batch's ranges are is known only when the pass is over: so the codes are made with the
running ranges of the batches before, and this batch's extremes are left, one pair for each program, to update these.

Elements are [outer, groups, inner] as in :mod:`codes_kernel`, whose codes these are to the bit: noise is a hash of the
element's number. What is not finite spoils y, as ever.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import optimizer_parts as parts
from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import narrow
from techniques.activation_compression.mesa import codes_kernel
from techniques.activation_compression.mesa.codes_kernel import POINTERS

TILE = 2048  # elements of a program, where a row has no more
STEPS = 8  # tiles of a program that sums gradients of weights
LONGEST_ROW = 2**14  # that a program holds in registers


@triton.jit
def _leave(extremes, place, least, largest):
    """Stores the program's least number and the largest's negative: the minimum over programs gives both."""
    tl.store(extremes + 2 * place, least)
    tl.store(extremes + 2 * place + 1, -largest)


@triton.jit
def _phi(x, TANH: tl.constexpr):
    """Computes GELU(x) / x, and its derivative."""
    if TANH:
        s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        return s, s * (1.0 - s) * (1.5957691216057308 + 0.2140710 * x * x)
    else:
        return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476), 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _of_a_group(outer, GROUPS: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Finds a tile of ROWS x COLUMNS elements of one group: the group, its first element, offsets, and which there
    are."""
    across: tl.constexpr = (INNER + COLUMNS - 1) // COLUMNS
    group = tl.program_id(0) % GROUPS
    block = tl.program_id(0) // GROUPS
    row, column = (block // across).to(tl.int64) * ROWS, block % across * COLUMNS
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    mask = (rows < outer - row) & (columns < INNER - column)
    return group, (row * GROUPS + group) * INNER + column, rows * (GROUPS * INNER) + columns, mask


@triton.jit
def gelu_kernel(
    x,
    table,
    seed,
    y,
    codes,
    extremes,
    outer,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TANH: tl.constexpr,
):
    group, first, offsets, mask = _of_a_group(outer, GROUPS, INNER, ROWS, COLUMNS)
    value = tl.load(x + first + offsets, mask=mask, other=0.0).to(tl.float32)
    share, _ = _phi(value, TANH)
    tl.store(y + first + offsets, narrow(value * share, y.dtype.element_ty), mask=mask)
    low, factor = tl.load(table + group), tl.load(table + GROUPS + group)
    tl.store(codes + first + offsets, codes_kernel.coded(value, low, factor, seed, first, offsets), mask=mask)
    least = tl.min(tl.min(tl.where(mask, value, float("inf")), 1), 0)
    largest = tl.max(tl.max(tl.where(mask, value, float("-inf")), 1), 0)
    _leave(extremes, tl.program_id(0), least, largest)


@triton.jit
def gelu_back_kernel(
    codes,
    gradient,
    table,
    of_x,
    outer,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TANH: tl.constexpr,
):
    group, first, offsets, mask = _of_a_group(outer, GROUPS, INNER, ROWS, COLUMNS)
    low, factor = tl.load(table + group), tl.load(table + GROUPS + group)
    value = tl.load(codes + first + offsets, mask=mask, other=0).to(tl.float32) * factor + low
    dy = tl.load(gradient + first + offsets, mask=mask, other=0.0).to(tl.float32)
    share, slope = _phi(value, TANH)
    tl.store(of_x + first + offsets, narrow(dy * (share + value * slope), of_x.dtype.element_ty), mask=mask)


@triton.jit
def _rows_of_a_head(of_a_group, GROUPS: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Finds ROWS rows of one group: the group, its first element, offsets, and which there are."""
    blocks = (of_a_group + ROWS - 1) // ROWS
    head = tl.program_id(0) // blocks
    row = (tl.program_id(0) - head * blocks) * ROWS
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    mask = (rows < of_a_group - row) & (columns < LENGTH)
    return head % GROUPS, (head.to(tl.int64) * of_a_group + row) * LENGTH, rows * LENGTH + columns, mask


@triton.jit
def softmax_kernel(
    x,
    table,
    seed,
    y,
    codes,
    extremes,
    of_a_group,
    GROUPS: tl.constexpr,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group, first, offsets, mask = _rows_of_a_head(of_a_group, GROUPS, LENGTH, ROWS, COLUMNS)
    value = tl.load(x + first + offsets, mask=mask, other=float("-inf")).to(tl.float32)
    top = tl.where(tl.sum(mask.to(tl.int32), 1) > 0, tl.max(value, 1), 0.0)
    raised = tl.exp(value - top[:, None])
    share = narrow(raised * (1.0 / tl.sum(raised, 1))[:, None], y.dtype.element_ty)
    tl.store(y + first + offsets, share, mask=mask)
    value = share.to(tl.float32)
    low, factor = tl.load(table + group), tl.load(table + GROUPS + group)
    tl.store(codes + first + offsets, codes_kernel.coded(value, low, factor, seed, first, offsets), mask=mask)
    least = tl.min(tl.min(tl.where(mask, value, float("inf")), 1), 0)
    largest = tl.max(tl.max(tl.where(mask, value, float("-inf")), 1), 0)
    _leave(extremes, tl.program_id(0), least, largest)


@triton.jit
def softmax_back_kernel(
    codes,
    gradient,
    table,
    of_x,
    of_a_group,
    GROUPS: tl.constexpr,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group, first, offsets, mask = _rows_of_a_head(of_a_group, GROUPS, LENGTH, ROWS, COLUMNS)
    low, factor = tl.load(table + group), tl.load(table + GROUPS + group)
    share = tl.load(codes + first + offsets, mask=mask, other=0).to(tl.float32) * factor + low
    dy = tl.load(gradient + first + offsets, mask=mask, other=0.0).to(tl.float32)
    met = tl.sum(share * dy, 1)  # dy is 0 beyond the row
    tl.store(of_x + first + offsets, narrow(share * (dy - met[:, None]), of_x.dtype.element_ty), mask=mask)


@triton.jit
def _parted(GROUPS: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Finds rows in their groups: numbers of rows, groups, offsets [ROWS, PARTS, COLUMNS] and columns [PARTS, COLUMNS],
    and which of these there are."""
    rows, groups, within = tl.arange(0, ROWS), tl.arange(0, PARTS), tl.arange(0, COLUMNS)
    columns = groups[:, None] * INNER + within[None, :]
    there = (groups < GROUPS)[:, None] & (within < INNER)[None, :]
    return rows, groups, (rows * (GROUPS * INNER))[:, None, None] + columns[None], columns, there


@triton.jit
def layer_norm_kernel(
    x,
    weight,
    bias,
    table,
    seed,
    y,
    means,
    scales,
    codes,
    extremes,
    rows,
    epsilon,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    in_tile, groups, offsets, columns, there = _parted(GROUPS, INNER, ROWS, PARTS, COLUMNS)
    row = tl.program_id(0).to(tl.int64) * ROWS
    first, present = row * (GROUPS * INNER), in_tile < rows - row
    mask = present[:, None, None] & there[None]
    value = tl.load(x + first + offsets, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(value, 2), 1) * (1.0 / (GROUPS * INNER))
    centred = tl.where(mask, value - mean[:, None, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, 2), 1) * (1.0 / (GROUPS * INNER)) + epsilon)
    tl.store(means + row + in_tile, mean, mask=present)
    tl.store(scales + row + in_tile, scale, mask=present)
    w = tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    result = centred * scale[:, None, None] * w[None] + b[None]
    tl.store(y + first + offsets, narrow(result, y.dtype.element_ty), mask=mask)
    low = tl.load(table + groups, mask=groups < GROUPS, other=0.0)[None, :, None]
    factor = tl.load(table + GROUPS + groups, mask=groups < GROUPS, other=0.0)[None, :, None]
    tl.store(codes + first + offsets, codes_kernel.coded(value, low, factor, seed, first, offsets), mask=mask)
    least = tl.min(tl.min(tl.where(mask, value, float("inf")), 2), 0)
    largest = tl.max(tl.max(tl.where(mask, value, float("-inf")), 2), 0)
    place = extremes + 2 * (tl.program_id(0) * GROUPS + groups)
    tl.store(place, least, mask=groups < GROUPS)
    tl.store(place + 1, -largest, mask=groups < GROUPS)


@triton.jit
def layer_norm_back_kernel(
    codes,
    gradient,
    weight,
    table,
    means,
    scales,
    of_x,
    of_weights,
    of_biases,
    rows,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Computes LayerNorm's gradients, where ``of_weights`` and ``of_biases`` [programs, width] are sums over STEPS
    tiles of ROWS."""
    in_tile, groups, offsets, columns, there = _parted(GROUPS, INNER, ROWS, PARTS, COLUMNS)
    low = tl.load(table + groups, mask=groups < GROUPS, other=0.0)[None, :, None]
    factor = tl.load(table + GROUPS + groups, mask=groups < GROUPS, other=0.0)[None, :, None]
    w = tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    of_weight, of_bias = tl.zeros((PARTS, COLUMNS), tl.float32), tl.zeros((PARTS, COLUMNS), tl.float32)
    for tile in range(STEPS):
        row = (tl.program_id(0).to(tl.int64) * STEPS + tile) * ROWS
        first, present = row * (GROUPS * INNER), in_tile < rows - row
        mask = present[:, None, None] & there[None]
        value = tl.load(codes + first + offsets, mask=mask, other=0).to(tl.float32) * factor + low
        dy = tl.load(gradient + first + offsets, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(means + row + in_tile, mask=present, other=0.0)[:, None, None]
        scale = tl.load(scales + row + in_tile, mask=present, other=0.0)[:, None, None]
        normal = (value - mean) * scale
        of_weight += tl.sum(dy * normal, 0)
        of_bias += tl.sum(dy, 0)
        dy = dy * w[None]  # 0 beyond the row
        shift = (tl.sum(tl.sum(dy, 2), 1) * (1.0 / (GROUPS * INNER)))[:, None, None]
        turn = (tl.sum(tl.sum(dy * normal, 2), 1) * (1.0 / (GROUPS * INNER)))[:, None, None]
        dx = (dy - shift - normal * turn) * scale
        tl.store(of_x + first + offsets, narrow(dx, of_x.dtype.element_ty), mask=mask)
    place = tl.program_id(0).to(tl.int64) * (GROUPS * INNER) + columns
    tl.store(of_weights + place, of_weight, mask=there)
    tl.store(of_biases + place, of_bias, mask=there)


Sizes = tuple[int, int, int]
"""outer, groups, inner."""


def gelu(x: Tensor, sizes: Sizes, table: Tensor, seed: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Computes GELU of ``x``, contiguous, its codes, and its ranges [2, groups]; ``table`` and ``seed`` as in
    :func:`codes_kernel.encode`."""
    outer, groups, inner = sizes
    blocks = _blocks(inner)
    programs = triton.cdiv(outer, blocks["ROWS"]) * triton.cdiv(inner, blocks["COLUMNS"])
    y, codes, extremes = torch.empty_like(x), torch.empty_like(x, dtype=torch.uint8), _extremes(x, programs, groups)
    constants = {"GROUPS": groups, "INNER": inner, **blocks, "TANH": tanh}
    _launch(gelu_kernel, programs * groups, constants, x, table, seed, y, codes, extremes, outer)
    return y, codes, _ranges(extremes)


def gelu_back(codes: Tensor, gradient: Tensor, sizes: Sizes, table: Tensor, tanh: bool) -> Tensor:
    """Computes the gradient of x from that of GELU's output; ``table`` as in :func:`codes_kernel.decode`."""
    outer, groups, inner = sizes
    blocks = _blocks(inner)
    programs = triton.cdiv(outer, blocks["ROWS"]) * triton.cdiv(inner, blocks["COLUMNS"]) * groups
    of_x = torch.empty_like(gradient)
    constants = {"GROUPS": groups, "INNER": inner, **blocks, "TANH": tanh}
    _launch(gelu_back_kernel, programs, constants, codes, gradient, table, of_x, outer)
    return of_x


def softmax(x: Tensor, sizes: Sizes, table: Tensor, seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes softmax over the last dimension of ``x``, contiguous, the codes of its output, and that one's ranges.
    Groups are of whole rows."""
    (outer, groups, inner), length = sizes, x.shape[-1]
    blocks, rows = _blocks(length, whole=True), inner // length
    programs = triton.cdiv(rows, blocks["ROWS"])
    y, codes = torch.empty_like(x), torch.empty_like(x, dtype=torch.uint8)
    extremes = _extremes(x, outer * programs, groups, by_program=False)
    constants = {"GROUPS": groups, "LENGTH": length, **blocks}
    _launch(softmax_kernel, outer * groups * programs, constants, x, table, seed, y, codes, extremes, rows)
    return y, codes, _ranges(extremes.view(outer, groups, programs, 2).transpose(1, 2).flatten(0, 1))


def softmax_back(codes: Tensor, gradient: Tensor, sizes: Sizes, table: Tensor) -> Tensor:
    """Computes the gradient of x from that of softmax's output, whose codes these are."""
    (outer, groups, inner), length = sizes, gradient.shape[-1]
    blocks, rows = _blocks(length, whole=True), inner // length
    of_x = torch.empty_like(gradient)
    constants = {"GROUPS": groups, "LENGTH": length, **blocks}
    programs = outer * groups * triton.cdiv(rows, blocks["ROWS"])
    _launch(softmax_back_kernel, programs, constants, codes, gradient, table, of_x, rows)
    return of_x


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    groups: int,
    table: Tensor,
    seed: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Computes LayerNorm over the last dimension of ``x``, contiguous, in ``dtype``; means and inverse deviations
    [rows] of x, its codes and its ranges, of ``groups`` equal parts of the dimension."""
    rows, constants = _of_rows(x, groups)
    programs = triton.cdiv(rows, constants["ROWS"])
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    y, codes = torch.empty_like(x, dtype=dtype), torch.empty_like(x, dtype=torch.uint8)
    extremes = _extremes(x, programs, groups)
    tensors = (x, weight, bias, table, seed, y, means, scales, codes, extremes)
    _launch(layer_norm_kernel, programs, constants, *tensors, rows, epsilon)
    return y, means, scales, codes, _ranges(extremes)


def layer_norm_back(
    codes: Tensor,
    gradient: Tensor,
    weight: Tensor,
    means: Tensor,
    scales: Tensor,
    groups: int,
    table: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of x, in ``dtype``, of weight and of bias, both float32."""
    rows, constants = _of_rows(gradient, groups)
    programs = triton.cdiv(rows, constants["ROWS"] * STEPS)
    of_x, width = torch.empty_like(gradient, dtype=dtype), gradient.shape[-1]
    of_weights, of_biases = (
        torch.empty(programs, width, dtype=torch.float32, device=gradient.device) for _ in range(2)
    )
    tensors = (codes, gradient, weight, table, means, scales, of_x, of_weights, of_biases)
    _launch(layer_norm_back_kernel, programs, constants | {"STEPS": STEPS}, *tensors, rows)
    return of_x, of_weights.sum(0), of_biases.sum(0)


def _blocks(columns: int, whole: bool = False) -> dict[str, int]:
    """Returns a tile's sizes: ``whole`` rows, or at most TILE of their columns."""
    width: int = triton.next_power_of_2(columns)
    width = width if whole else min(width, TILE)
    return {"ROWS": max(1, TILE // width), "COLUMNS": width}


def _of_rows(x: Tensor, groups: int) -> tuple[int, dict[str, int]]:
    """Returns the number of rows, and the constants of LayerNorm's kernels."""
    inner = x.shape[-1] // groups
    parts_, columns = triton.next_power_of_2(groups), triton.next_power_of_2(inner)
    constants = {"ROWS": max(1, TILE // (parts_ * columns)), "PARTS": parts_, "COLUMNS": columns}
    return x.numel() // x.shape[-1], {"GROUPS": groups, "INNER": inner} | constants


def _extremes(x: Tensor, programs: int, groups: int, by_program: bool = True) -> Tensor:
    return torch.empty((programs, groups, 2) if by_program else (programs * groups, 2), device=x.device)


def _ranges(extremes: Tensor) -> Tensor:
    """Computes beta and alpha, [2, groups], of [programs, groups, 2]."""
    least, negative = extremes.amin(0).unbind(-1)
    return torch.stack([least, -negative - least])


def _launch(kernel: Any, programs: int, constants: dict[str, Any], *arguments: Any) -> None:
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants, num_warps=parts.NUM_WARPS, **parts.OPTIONS)


HEADS, WIDTH, TOKENS = 12, 768, 1024  # of GPT-2's smallest model


def _manifest(kernel: Any, dtype: torch.dtype, constants: dict[str, Any], instructions: float) -> Manifest:
    """Describes a compilation of the kernel with ``instructions`` an element. 7.8 for each byte that moves would hide
    behind them: 70 at four bytes a value and 39 at two. Codes take 30 of them, of which their noise is ten: at two
    bytes a value instructions bind."""
    of_norm, back = kernel in (layer_norm_kernel, layer_norm_back_kernel), "gradient" in kernel.arg_names
    types = dict.fromkeys(("x", "y", "gradient", "of_x"), POINTERS[dtype]) | {"codes": "*u8", "seed": "*i32"}
    types |= dict.fromkeys(("outer", "of_a_group", "rows"), "i32") | {"epsilon": "fp32"}
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names if name not in constants}
    wide = TILE * dtype.itemsize // (parts.NUM_WARPS * 32 * 16)  # of a thread, 16 bytes each
    coded = TILE // (parts.NUM_WARPS * 32 * 16)
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants=constants,
        elements_per_program=constants["ROWS"] * WIDTH if of_norm else TILE,
        aligned=tuple(name for name in signature if signature[name].startswith("*")),
        num_warps=parts.NUM_WARPS,
        options=parts.OPTIONS,
        budget=Budget(
            registers=176 if of_norm and back else 80,
            shared_bytes=8 * 1024,
            wide_loads=wide + (coded if back else 0) + (of_norm and (2 if back else 4)),  # weight and bias
            wide_stores=wide + (0 if back else coded) + (of_norm and back and 4),  # their gradients
            instructions_per_element=instructions,
        ),
    )


def _manifests(dtype: torch.dtype, name: str) -> dict[str, Manifest]:
    of_gelu = {"GROUPS": HEADS, "INNER": 4 * WIDTH // HEADS, **_blocks(4 * WIDTH // HEADS)}
    of_softmax = {"GROUPS": HEADS, "LENGTH": TOKENS, **_blocks(TOKENS, whole=True)}
    _, of_norm = _of_rows(torch.empty(1, WIDTH, device="meta"), HEADS)
    exact, tanh = of_gelu | {"TANH": False}, of_gelu | {"TANH": True}
    return {
        f"gelu {name}": _manifest(gelu_kernel, dtype, exact, 72.0),
        f"gelu {name}:back": _manifest(gelu_back_kernel, dtype, exact, 56.0),
        f"gelu tanh {name}": _manifest(gelu_kernel, dtype, tanh, 60.0),
        f"gelu tanh {name}:back": _manifest(gelu_back_kernel, dtype, tanh, 42.0),
        f"softmax {name}": _manifest(softmax_kernel, dtype, of_softmax, 54.0),
        f"softmax {name}:back": _manifest(softmax_back_kernel, dtype, of_softmax, 20.0),
        f"layer_norm {name}": _manifest(layer_norm_kernel, dtype, of_norm, 74.0),
        f"layer_norm {name}:back": _manifest(layer_norm_back_kernel, dtype, of_norm | {"STEPS": STEPS}, 67.0),
    }


MANIFESTS = _manifests(torch.float32, "float32") | _manifests(torch.bfloat16, "bfloat16")
