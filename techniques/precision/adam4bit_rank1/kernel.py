"""Updates by AdamW with 4-bit moments, the second with scales of rank one (2309.01507, Algorithm 1, section 4.2).

A scale of rank one is the smaller of a row's and a column's largest, and those of the new second moment are known only
when all of it is. So

    pass 1   g, v's codes            -> the largest of each row and column of the new v, by tiles of 16 x 128
    pass 2   p, g, m's and v's codes -> p, m's and v's codes, by stretches of 16 groups of 128
    commit   the new largest in the place of the old ones, which both passes decode by

Traffic: 18.5 bytes and 8 / 128 a float32 parameter (4 + 1/2, then 4 + 4 + 1/2 + 1/2 read, 4 + 1/2 + 1/2 written), 10.5
a bfloat16 one, and some bytes a row and a column. A largest is the maximum of its tiles' by atomic operations on the
bits of non-negative float32: whole numbers in the order of what they stand for, so that the order of programs has no
part in it. Both passes compute the same bits of v.

A group of 128 lies within a row where the matrix has a multiple of 128 columns: then loads are wide. Others, and the
ends, are loaded element by element; the rest is shared.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import Number
from techniques.precision.adam4bit_rank1.codes import BLOCK, FIRST
from techniques.precision.shared import dynamic_map_kernel, low_bit_kernel
from techniques.shared.adam_kernel import corrections

GROUP = tl.constexpr(BLOCK)
ROWS = tl.constexpr(16)
"""Groups of a program, or rows of a tile."""
STRETCH = optimizer_parts.BLOCK
ALL_NAN = tl.constexpr(tl.PropagateNan.ALL)
MAGIC = tl.constexpr(2.0**23)  # from here on float32 are whole numbers, which their lowest bits say
LEVELS = tl.constexpr(16)


@triton.jit
def _pairs(address, DTYPE: tl.constexpr):
    """Loads the codes at ``address``, two a byte, aligned for as many of a thread as it has parameters of ``DTYPE``:
    one layout of both in a program's registers, where another would go through shared memory."""
    BYTES: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    return tl.multiple_of(multi_tensor.pointer(address, tl.uint8, False), BYTES)


@triton.jit
def _unpaired(pairs):
    return tl.reshape(tl.join(pairs & 15, pairs >> 4), (pairs.shape[0], 2 * pairs.shape[1]))


@triton.jit
def _paired(codes):
    low, high = tl.split(tl.reshape(codes, (codes.shape[0], codes.shape[1] // 2, 2)))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def _codes(pointer, elements, mask, ZERO: tl.constexpr):
    """Loads the codes of ``elements``, one by one; ``ZERO`` where there is none."""
    pairs = tl.load(pointer + elements // 2, mask=mask, other=17 * ZERO)
    return (pairs >> ((elements % 2) * 4).to(tl.uint8)) & 15


@triton.jit
def _level(codes):
    """Returns what the codes of the second moment stand for: 1/16, 2/16, ..., 1 (section 4.1)."""
    return (codes.to(tl.float32) + 1.0) * (1.0 / LEVELS)


@triton.jit
def _smaller(rows, columns):
    return tl.minimum(rows, columns, propagate_nan=ALL_NAN)


@triton.jit
def _passed_rows(first, numbers, length):
    """Counts how many rows of ``length`` end before the ``numbers`` past ``first``, a place in a row."""
    # Of short rows by the quotient, which is exact for small numbers; of others at most one ends.
    short = (tl.minimum(first, 4096).to(tl.int32) + numbers).to(tl.float32) + 0.5
    quotient = (short * (1.0 / length.to(tl.float32))).to(tl.int32)
    return tl.where(length < 2048, quotient, (numbers >= length - first).to(tl.int32))


@triton.jit(do_not_specialize=["tensors"])
def largest_kernel(
    table, tiles, code_table, largest, tensors, clip, found_inf, beta2, one_minus_beta2, DTYPES: tl.constexpr
):
    """Runs pass 1. ``tiles`` says tensor and tile of each program; ``largest`` has the addresses of what the largest of
    the rows of all tensors, and then of their columns, are and become, and how many there are."""
    if optimizer_parts.skipped(found_inf):
        return
    tensor, tile = multi_tensor.block(tiles, 1)
    height = multi_tensor.elements(largest, 2, tensor, 2 * tensors)
    width = multi_tensor.elements(largest, 2, tensor + tensors, 2 * tensors)
    across = (width + GROUP - 1) // GROUP
    down = (tile.to(tl.uint32) // across.to(tl.uint32)).to(tl.int64)
    right = tile - down * across
    rows, columns = down * ROWS + tl.arange(0, ROWS), right * GROUP + tl.arange(0, GROUP)
    row_there, column_there = rows < height, columns < width
    row_ends = multi_tensor.address(largest, 0, tensor, 2 * tensors).to(tl.pointer_type(tl.float32)) + rows
    column_ends = multi_tensor.address(largest, 0, tensor + tensors, 2 * tensors).to(tl.pointer_type(tl.float32))
    column_ends += columns
    gradients = multi_tensor.address(table, 1, tensor, tensors)
    second = multi_tensor.address(code_table, 1, tensor, tensors)
    if (width % GROUP == 0) & ((gradients | second) % multi_tensor.VECTOR_BYTES == 0):
        across_rows = rows[:, None] * across  # of tiles: what it is multiplied by is seen to be aligned
        pairs_at = across_rows * (GROUP // 2) + right * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
        codes = _unpaired(tl.load(_pairs(second, DTYPES[1]) + pairs_at, mask=row_there[:, None], other=0))
        at = across_rows * GROUP + right * GROUP + tl.arange(0, GROUP)[None, :]
        g = tl.load(multi_tensor.pointer(gradients, DTYPES[1], True) + at, mask=row_there[:, None], other=0.0)
    else:
        mask = row_there[:, None] & column_there[None, :]
        at_each = rows[:, None] * width + columns[None, :]
        codes = _codes(multi_tensor.pointer(second, tl.uint8, False), at_each, mask, 0)
        g = tl.load(multi_tensor.pointer(gradients, DTYPES[1], False) + at_each, mask=mask, other=0.0)
    g = g.to(tl.float32) * optimizer_parts.gradient_factor(clip)
    row_scales = tl.load(row_ends, mask=row_there, other=0.0)
    column_scales = tl.load(column_ends, mask=column_there, other=0.0)
    scales = _smaller(row_scales[:, None], column_scales[None, :])
    v = low_bit_kernel.second_moment(g, _level(codes), scales, (beta2, one_minus_beta2))
    bits = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    new = multi_tensor.address(largest, 1, tensor, 2 * tensors).to(tl.pointer_type(tl.int32)) + rows
    tl.atomic_max(new, tl.max(bits, axis=1), mask=row_there, sem="relaxed")
    new = multi_tensor.address(largest, 1, tensor + tensors, 2 * tensors).to(tl.pointer_type(tl.int32)) + columns
    tl.atomic_max(new, tl.max(bits, axis=0), mask=column_there, sem="relaxed")


@triton.jit(do_not_specialize=["tensors", "seed"])
def adam4bit_kernel(
    table,
    blocks,
    code_table,
    scale_table,
    largest,
    first_map,
    tensors,
    seed,
    clip,
    found_inf,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    decay,
    step_size,
    inverse_root_correction,
    eps,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Runs pass 2. ``decay`` is 1 - lr wd; the tables are of parameters and gradients, of the codes and of the scales
    of the groups; ``largest`` as in pass 1."""
    if optimizer_parts.skipped(found_inf):
        return
    tensor, first = multi_tensor.block(blocks, BLOCK)
    remaining = multi_tensor.elements(table, 2, tensor, tensors) - first
    here = tl.minimum(remaining, BLOCK).to(tl.int32)  # comparing 64 bits takes twice the instructions
    width = multi_tensor.elements(largest, 2, tensor + tensors, 2 * tensors)
    column, bits = multi_tensor.addresses(table, (0, 1), tensor, tensors)
    codes, code_bits = multi_tensor.addresses(code_table, (0, 1), tensor, tensors)
    row_ends, _ = multi_tensor.addresses(largest, (0, 1), tensor, 2 * tensors)
    column_ends, column_bits = multi_tensor.addresses(largest, (0, 1), tensor + tensors, 2 * tensors)
    aligned = multi_tensor.vectorizable(bits | code_bits | column_bits, remaining, BLOCK)
    groups = tl.arange(0, ROWS)
    offsets = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    pair_offsets = groups[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    there = groups * GROUP < here
    mask, pair_mask = offsets < here, pair_offsets * 2 < here
    place, whole_place = (tensor, first, offsets, mask), (tensor, first, offsets, None)
    narrow = multi_tensor.pointers(column, first, (0, 1), DTYPES, False)
    wide = multi_tensor.pointers(column, first, (0, 1), DTYPES, True)
    narrow_codes = multi_tensor.pointers(codes, first // 2, (0, 1), (tl.uint8, tl.uint8), False)
    row_first, column_first = first // width, first % width
    rows = multi_tensor.pointers(row_ends, row_first, (0, 1), (tl.float32, tl.float32), False)
    whole = aligned & (width % GROUP == 0)
    if whole:
        p, g = low_bit_kernel.load(wide[0], offsets), low_bit_kernel.load(wide[1], offsets)
        first_codes = _unpaired(tl.load(_pairs(codes[0], DTYPES[0]) + first // 2 + pair_offsets))
        second_codes = _unpaired(tl.load(_pairs(codes[1], DTYPES[0]) + first // 2 + pair_offsets))
        length = width // GROUP
        passed = _passed_rows(column_first // GROUP, groups, length)
        at = (column_first // GROUP + groups - passed * length) * GROUP
        columns = multi_tensor.pointers(column_ends, 0, (0, 1), (tl.float32, tl.float32), True)
        at_columns = at[:, None] + tl.arange(0, GROUP)[None, :]
        scales = _smaller(tl.load(rows[0] + passed)[:, None], tl.load(columns[0] + at_columns))
        new_scales = _smaller(tl.load(rows[1] + passed)[:, None], tl.load(columns[1] + at_columns))
    else:
        p, g = optimizer_parts.load(narrow[0], place), optimizer_parts.load(narrow[1], place)
        first_codes = _codes(narrow_codes[0], offsets, mask, 7)
        second_codes = _codes(narrow_codes[1], offsets, mask, 0)
        each_passed = _passed_rows(column_first, offsets, width)
        at_each = offsets - each_passed * width.to(tl.int32)
        narrow_columns = multi_tensor.pointers(column_ends, column_first, (0, 1), (tl.float32, tl.float32), False)
        scales = _smaller(
            tl.load(rows[0] + each_passed, mask=mask, other=0.0),
            tl.load(narrow_columns[0] + at_each, mask=mask, other=0.0),
        )
        new_scales = _smaller(
            tl.load(rows[1] + each_passed, mask=mask, other=0.0),
            tl.load(narrow_columns[1] + at_each, mask=mask, other=0.0),
        )

    group_scales = multi_tensor.address(scale_table, 0, tensor, tensors).to(tl.pointer_type(tl.float32))
    group_scales += first // GROUP + groups
    p, m, v = low_bit_kernel.adam(
        p,
        g * optimizer_parts.gradient_factor(clip),
        dynamic_map_kernel.decode(first_codes, first_map, 4, True),
        _level(second_codes),
        tl.load(group_scales, mask=there, other=0.0)[:, None],
        scales,
        (beta1, one_minus_beta1),
        (beta2, one_minus_beta2),
        optimizer_parts.number(decay),
        optimizer_parts.number(step_size),
        optimizer_parts.number(inverse_root_correction),
        eps,
    )
    over_m, m_scales = low_bit_kernel.scaled(m)
    first_codes = dynamic_map_kernel.encode(over_m, first_map, 4, True) & 15
    over_v = v * tl.where(new_scales >= low_bit_kernel.SMALLEST_SCALE, low_bit_kernel.reciprocal(new_scales), 0.0)
    level = tl.fma(tl.minimum(tl.maximum(over_v, 1.0 / LEVELS), 1.0), LEVELS, MAGIC)
    second_codes = (level.to(tl.int32, bitcast=True) & 31) - 1

    tl.store(group_scales, m_scales, mask=there)
    if whole:
        optimizer_parts.store(wide[0], whole_place, p, seed)
        tl.store(_pairs(codes[0], DTYPES[0]) + first // 2 + pair_offsets, _paired(first_codes))
        tl.store(_pairs(codes[1], DTYPES[0]) + first // 2 + pair_offsets, _paired(second_codes))
    else:
        optimizer_parts.store(narrow[0], place, p, seed)
        first_codes, second_codes = tl.where(mask, first_codes, 0), tl.where(mask, second_codes, 0)
        tl.store(narrow_codes[0] + pair_offsets, _paired(first_codes), mask=pair_mask)
        tl.store(narrow_codes[1] + pair_offsets, _paired(second_codes), mask=pair_mask)


@triton.jit
def _replace(pointers, place):
    old, new = pointers
    _, _, offsets, mask = place
    x = tl.load(new + offsets, mask=mask, other=0.0)
    tl.store(old + offsets, x, mask=mask)
    tl.store(new + offsets, tl.zeros_like(x), mask=mask)


@triton.jit(do_not_specialize=["tensors"])
def commit_kernel(largest, blocks, tensors, found_inf, DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """Puts the largest of rows and columns in the place of the old ones, and zeros in theirs, for the next step."""
    if optimizer_parts.skipped(found_inf):
        return
    multi_tensor.over_block(_replace, (), largest, blocks, tensors, (0, 1), DTYPES, BLOCK, PIECE)


@dataclass
class Tables:
    """Holds what a step keeps between calls: launch tables, the numbers of the tiles, and memory for the new
    largest."""

    elements: LaunchTables = field(default_factory=optimizer_parts.launch_tables)
    codes: LaunchTables = field(default_factory=lambda: LaunchTables(STRETCH // 2))
    scales: LaunchTables = field(default_factory=lambda: LaunchTables(ROWS.value))
    largest: LaunchTables = field(default_factory=optimizer_parts.launch_tables)
    shapes: list[tuple[int, int]] = field(default_factory=list)
    new: list[Tensor] = field(default_factory=list)
    tiles: Tensor = field(default_factory=lambda: torch.empty(0))

    def follow(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> None:
        """Makes ``new`` and ``tiles`` those of these matrices."""
        shapes = [(len(row), len(other)) for row, other in zip(rows, columns, strict=True)]
        if shapes == self.shapes and self.tiles.device == rows[0].device:
            return
        self.shapes, self.new = shapes, [torch.zeros_like(row) for row in (*rows, *columns)]
        counts = (-(-height // ROWS.value) * -(-width // BLOCK) for height, width in shapes)
        self.tiles = torch.tensor(multi_tensor.pack_blocks(counts, 1)).to(rows[0].device)


def adam4bit_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Sequence[Tensor]],
    tables: Tables,
    *,
    step: Number,
    lr: Number,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Makes AdamW's step number ``step`` (from 1), in place: three launches for all matrices.

    ``states`` are the lists of first codes, first scales, second codes, and the largest of rows and of columns
    (`optimizer.moments`), whose lengths say the matrices' shapes: fewer than 2**31 columns. Parameters and gradients
    are contiguous and not empty, float32 or bfloat16 each. The rest is as in `techniques.shared.adam_kernel.adam_step`.
    Raises TypeError for parameters or gradients of several dtypes.
    """
    first, first_scales, second, rows, columns = states
    elements = tables.elements.groups((parameters,), (gradients,))
    if len(elements) != 1:
        raise TypeError("the kernel takes parameters of one dtype and gradients of one: make a parameter group of each")
    tables.follow(rows, columns)
    (codes,) = tables.codes.groups((first, second), ())
    (scales,) = tables.scales.groups((first_scales,), ())
    (largest,) = tables.largest.groups(([*rows, *columns], tables.new), ())
    lr, (group,) = optimizer_parts.precise(lr), elements
    correction, inverse_root = corrections(step, beta1, beta2)
    second_beta: dict[str, Number] = {"beta2": beta2, "one_minus_beta2": 1 - beta2}
    hyper = second_beta | {
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "eps": eps,
        "decay": 1 - lr * weight_decay,
        "step_size": lr / correction,
        "inverse_root_correction": inverse_root,
    }
    device = group.table.device
    options = {"num_warps": optimizer_parts.NUM_WARPS, **optimizer_parts.OPTIONS}
    dtypes = tuple(optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
    with torch.cuda.device_of(group.table):
        largest_kernel[(tables.tiles.numel(),)](
            group.table,
            tables.tiles,
            codes.table,
            largest.table,
            group.tensors,
            clip=clip,
            found_inf=found_inf,
            **low_bit_kernel.passed(second_beta, device),
            DTYPES=dtypes,
            **options,
        )
        adam4bit_kernel[(group.programs,)](
            group.table,
            group.blocks,
            codes.table,
            scales.table,
            largest.table,
            dynamic_map_kernel.table_on(device, FIRST),
            group.tensors,
            seed=optimizer_parts.seed_word(seed),
            clip=clip,
            found_inf=found_inf,
            **low_bit_kernel.passed(hyper, device),
            DTYPES=dtypes,
            BLOCK=STRETCH,
            **options,
        )
        commit_kernel[(largest.programs,)](
            largest.table,
            largest.blocks,
            largest.tensors,
            found_inf,
            DTYPES=(tl.float32, tl.float32),
            BLOCK=STRETCH,
            PIECE=optimizer_parts.PIECE,
            **options,
        )
    optimizer_parts.note_change(parameters, *states)


# Instructions an element, of all paths. Whole float32 stretches run 88 in pass 2, tiles 29 in pass 1, where 144 are
# issued while the bytes move; those of bfloat16 run 86 and 30, where 82 are.
LARGEST = {"registers": 80, "shared_bytes": 3072, "instructions": 66}
UPDATE = {"registers": 200, "shared_bytes": 5120, "instructions": 165}
COMMIT = {"registers": 40, "shared_bytes": 0, "instructions": 12}
RANDOM = 17
COLUMN_SCALES = 8  # bytes an element that pass 2 reads again and again, from a cache


def _manifest(
    kernel: Any,
    dtype: torch.dtype,
    limits: Mapping[str, Any],
    read: int,
    written: int,
    scaled: bool = False,
    stochastic: bool = False,
) -> Manifest:
    """Describes a compilation for parameters and gradients of ``dtype``, of which whole stretches have so many bytes
    ``read`` and ``written`` an element by the widest accesses."""
    constants = {"DTYPES": (optimizer_parts.DTYPES[dtype],) * 2, "BLOCK": STRETCH, "PIECE": optimizer_parts.PIECE}
    constants |= {} if scaled else dict.fromkeys(optimizer_parts.SCALARS)
    constants |= {} if stochastic else {"seed": None}
    constants = {name: constant for name, constant in constants.items() if name in kernel.arg_names}
    types = optimizer_parts.ARGUMENTS | dict.fromkeys(("tiles", "code_table", "scale_table", "largest"), "*i64")
    types |= {"first_map": "*i32", "seed": "*i32", "step_size": "*fp32", "inverse_root_correction": "*fp32"}
    signature = {name: types.get(name, "fp32") for name in kernel.arg_names if name not in constants}
    budget = optimizer_parts.streaming_budget([read], [written], registers=limits["registers"])
    instructions = limits["instructions"] + RANDOM * ("seed" in signature)
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants=constants,
        elements_per_program=STRETCH,
        aligned=tuple(name for name, kind in signature.items() if kind.startswith("*")),
        num_warps=optimizer_parts.NUM_WARPS,
        options=optimizer_parts.OPTIONS,
        budget=replace(budget, shared_bytes=limits["shared_bytes"], instructions_per_element=instructions),
    )


def _manifests(name: str, dtype: torch.dtype, **kind: bool) -> dict[str, Manifest]:
    size = dtype.itemsize
    return {
        name: _manifest(adam4bit_kernel, dtype, UPDATE, 2 * size + COLUMN_SCALES, size, **kind),
        f"{name}:largest": _manifest(largest_kernel, dtype, LARGEST, size, 0, **kind),
    }


MANIFESTS = {
    **_manifests("float32", torch.float32),
    "float32:commit": _manifest(commit_kernel, torch.float32, COMMIT, 4, 8),
    **_manifests("float32_scaled", torch.float32, scaled=True),
    **_manifests("bfloat16", torch.bfloat16),
    **_manifests("bfloat16_stochastic", torch.bfloat16, stochastic=True),
}
