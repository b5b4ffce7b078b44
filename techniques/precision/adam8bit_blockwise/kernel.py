"""AdamW with 8-bit moments (2110.02861, section 2) in one pass and one launch: decode, update, encode.

Traffic is the floor: 16 bytes and 16 / block a float32 parameter (4 + 4 + 1 + 1 read, 4 + 1 + 1 written), 10 a bfloat16
one. The codes are looked up in no table: they are arithmetic (`techniques.shared.dynamic_map`). A program works on
whole blocks, so that scales are reductions within it. Square root and quotients are the fast ones, within two units in
the last place: codes and scales have no part in that.

Optionally, at no further pass: gradients multiplied by a factor, the whole step left out, and bfloat16 parameters
rounded stochastically, as in `techniques.shared.adam_kernel`.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import Number
from techniques.precision.adam8bit_blockwise import dynamic_map_kernel
from techniques.precision.adam8bit_blockwise.optimizer import FIRST, SECOND
from techniques.shared.adam_kernel import corrections

Tables = tuple[LaunchTables, LaunchTables]
"""Those of what has the parameters' shape, and those of the scales."""

REGISTERS = 168  # three programs of four warps on a multiprocessor
SHARED_BYTES = 10 * 1024  # lists of several widths, and reductions over the warps, meet there
INSTRUCTIONS = 182  # an element: two are decoded (20 each), two encoded (40 each); some 60 are Adam, loads and stores
RANDOM = 30
SMALLEST_SCALE = tl.constexpr(2.0**-126)


@triton.jit
def _scaled(x, mask):
    """``x`` over the largest magnitude of its row, and those: infinite where one is no number, so that it is seen."""
    scales = tl.max(tl.where(mask, tl.where(x == x, tl.abs(x), float("inf")), 0.0), axis=1)
    inverse = tl.where(scales >= SMALLEST_SCALE, 1.0 / tl.maximum(scales, SMALLEST_SCALE), 0.0)
    return x * inverse[:, None], scales


@triton.jit
def _update(
    pointers, scales, tensor, first, start, remaining, factor, seed,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
    FIRST_LINES: tl.constexpr, SECOND_LINES: tl.constexpr,
    SIZE: tl.constexpr, QUANTISED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    parameters, first_codes, second_codes, gradients = pointers
    rows = start // QUANTISED + tl.arange(0, SIZE // QUANTISED)
    offsets = rows[:, None] * QUANTISED + tl.arange(0, QUANTISED)[None, :]
    if WHOLE:
        mask = tl.full((SIZE // QUANTISED, QUANTISED), True, tl.int1)
        there = tl.full((SIZE // QUANTISED,), True, tl.int1)
    else:
        mask, there = offsets < remaining, rows * QUANTISED < remaining
    place = (tensor, first, offsets, mask)
    p = optimizer_parts.load(parameters, place)
    g = optimizer_parts.load(gradients, place) * factor
    m = dynamic_map_kernel.decode(tl.load(first_codes + offsets, mask=mask, other=0), 8, True)
    v = dynamic_map_kernel.decode(tl.load(second_codes + offsets, mask=mask, other=0), 8, False)
    m = m * tl.load(scales[0] + rows, mask=there, other=0.0)[:, None]
    v = v * tl.load(scales[1] + rows, mask=there, other=0.0)[:, None]
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    p = decay * p - step_size * (m / (tl.sqrt(v) * inverse_root_correction + eps))
    optimizer_parts.store(parameters, place, p, seed)
    m, m_scales = _scaled(m, mask)
    v, v_scales = _scaled(v, mask)
    m_codes = dynamic_map_kernel.encode(m, FIRST_LINES, 8, True)
    v_codes = dynamic_map_kernel.encode(v, SECOND_LINES, 8, False)
    tl.store(first_codes + offsets, m_codes.to(tl.uint8), mask=mask)
    tl.store(second_codes + offsets, v_codes.to(tl.uint8), mask=mask)
    tl.store(scales[0] + rows, m_scales, mask=there)
    tl.store(scales[1] + rows, v_scales, mask=there)


@triton.jit(do_not_specialize=["tensors", "seed"])
def adam8bit_kernel(
    table, blocks, scale_table, tensors, seed, clip, found_inf,
    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
    FIRST_LINES: tl.constexpr, SECOND_LINES: tl.constexpr, QUANTISED: tl.constexpr,
    DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """``decay`` is 1 - lr wd. ``scale_table`` is like ``table``, of the scales of either moment."""
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(clip)
    decay, step_size = optimizer_parts.number(decay), optimizer_parts.number(step_size)
    inverse_root_correction = optimizer_parts.number(inverse_root_correction)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    column, bits = multi_tensor.addresses(table, (0, 1, 2, 3), tensor, tensors)
    scale_column, _ = multi_tensor.addresses(scale_table, (0, 1), tensor, tensors)
    scales = multi_tensor.pointers(scale_column, first // QUANTISED, (0, 1), (tl.float32, tl.float32), False)
    remaining = multi_tensor.elements(table, len(DTYPES), tensor, tensors) - first
    if multi_tensor.vectorizable(bits, remaining, BLOCK):
        pointers = multi_tensor.pointers(column, first, (0, 1, 2, 3), DTYPES, True)
        _update(
            pointers, scales, tensor, first, 0, remaining, factor, seed,
            beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
            FIRST_LINES, SECOND_LINES, BLOCK, QUANTISED, True,
        )  # fmt: skip
    else:
        pointers = multi_tensor.pointers(column, first, (0, 1, 2, 3), DTYPES, False)
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                _update(
                    pointers, scales, tensor, first, start, remaining, factor, seed,
                    beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_root_correction, eps,
                    FIRST_LINES, SECOND_LINES, PIECE, QUANTISED, False,
                )  # fmt: skip


def launch_tables() -> Tables:
    """What a step keeps between calls: one for each list of parameters that is updated together."""
    return optimizer_parts.launch_tables(), optimizer_parts.launch_tables()


def adam8bit_step(
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
    block: int,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """AdamW's step number ``step`` (from 1), in place: one launch.

    ``states`` are the lists of first codes, first scales, second codes and second scales (`optimizer.moments`).
    Parameters and gradients are contiguous and not empty, float32 or bfloat16 each. The rest is as in
    `techniques.shared.adam_kernel.adam_step`. Raises TypeError for gradients of several dtypes.
    """
    first, first_scales, second, second_scales = states
    groups = tables[0].groups((parameters, first, second), (gradients,))
    scale_groups = tables[1].groups((first_scales, second_scales), ())
    if len(groups) != 1:
        raise TypeError("the kernel takes parameters of one dtype and gradients of one: make a parameter group of each")
    lr, (group,), (scales,) = optimizer_parts.precise(lr), groups, scale_groups
    correction, inverse_root = corrections(step, beta1, beta2)
    hyper: dict[str, Number] = {
        "beta1": beta1, "one_minus_beta1": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2, "eps": eps,
        "decay": 1 - lr * weight_decay, "step_size": lr / correction, "inverse_root_correction": inverse_root,
    }  # fmt: skip
    numbers = {name: _passed(each, group.table.device) for name, each in hyper.items()}
    with torch.cuda.device_of(group.table):
        adam8bit_kernel[(group.programs,)](
            group.table, group.blocks, scales.table, group.tensors,
            seed=optimizer_parts.seed_word(seed), clip=clip, found_inf=found_inf, **numbers,
            **_constants(group.dtypes, block), num_warps=optimizer_parts.NUM_WARPS, **optimizer_parts.OPTIONS,
        )  # fmt: skip
    optimizer_parts.note_change(parameters, first, second, first_scales, second_scales)


def _passed(number: Number, device: torch.device) -> Number:
    return number.to(device, torch.float32) if isinstance(number, Tensor) else float(number)


def _constants(dtypes: Sequence[torch.dtype], block: int) -> dict[str, Any]:
    names = {**optimizer_parts.DTYPES, torch.uint8: tl.uint8}
    return {
        "FIRST_LINES": FIRST.lines,
        "SECOND_LINES": SECOND.lines,
        "QUANTISED": block,
        "DTYPES": tuple(names[dtype] for dtype in dtypes),
        "BLOCK": optimizer_parts.BLOCK,
        "PIECE": max(optimizer_parts.PIECE, block),
    }


def _instructions(block: int, stochastic: bool) -> float:
    """Of both paths together: a piece of the second is a quarter of a program's elements, or all where blocks are."""
    pieces = max(optimizer_parts.PIECE, block) / optimizer_parts.BLOCK
    return (INSTRUCTIONS + RANDOM * stochastic) * (1 + pieces)


def _manifest(parameter: torch.dtype, block: int = 2048, scaled: bool = False, stochastic: bool = False) -> Manifest:
    dtypes = (parameter, torch.uint8, torch.uint8, parameter)
    constants = _constants(dtypes, block)
    constants |= {} if scaled else dict.fromkeys(optimizer_parts.SCALARS)
    constants |= {} if stochastic else {"seed": None}
    types = {**optimizer_parts.ARGUMENTS, "scale_table": "*i64", "step_size": "*fp32", "seed": "*i32"}
    types |= {"inverse_root_correction": "*fp32"}
    signature = {name: types.get(name, "fp32") for name in adam8bit_kernel.arg_names if name not in constants}
    sizes = [dtype.itemsize for dtype in dtypes]
    budget = optimizer_parts.streaming_budget(sizes, sizes[:3], registers=REGISTERS)
    return Manifest(
        kernel=adam8bit_kernel,
        signature=signature,
        constants=constants,
        elements_per_program=optimizer_parts.BLOCK,
        aligned=tuple(name for name, kind in signature.items() if kind.startswith("*")),
        num_warps=optimizer_parts.NUM_WARPS,
        options=optimizer_parts.OPTIONS,
        budget=replace(budget, shared_bytes=SHARED_BYTES, instructions_per_element=_instructions(block, stochastic)),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32),
    "float32_256": _manifest(torch.float32, block=256),
    "bfloat16": _manifest(torch.bfloat16),
    "float32_256_scaled": _manifest(torch.float32, block=256, scaled=True),
    "bfloat16_256": _manifest(torch.bfloat16, block=256),
    "bfloat16_256_stochastic": _manifest(torch.bfloat16, block=256, stochastic=True),
}
