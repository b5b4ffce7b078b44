"""Updates by AdamW with 8-bit moments (2110.02861, section 2) in one pass and one launch: decode, update, encode.

Traffic is the floor: 16 bytes and 16 / block a float32 parameter (4 + 4 + 1 + 1 read, 4 + 1 + 1 written), 10 a bfloat16
one. The codes are looked up in no table: they are arithmetic along lines (`shared.dynamic_map_kernel`). A
program works on whole blocks, so that scales are reductions within it.

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
from techniques.precision.adam8bit_blockwise.codes import FIRST, SECOND
from techniques.precision.shared import dynamic_map_kernel, low_bit_kernel
from techniques.shared.adam_kernel import corrections

Tables = tuple[LaunchTables, LaunchTables]
"""Those of what has the parameters' shape, and those of the scales."""

REGISTERS = 112  # four programs of four warps on a multiprocessor
SHARED_BYTES = 5 * 1024  # blocks that are not whole get the layout of those that are, and warps agree on the largest
INSTRUCTIONS = 118
"""An element, all paths: a whole block runs 83 of them (float32) or 78 (bfloat16), where 125 or 78 are issued while the
bytes move. Of these decoding two codes is 17 and encoding two 26; the rest of the paths are narrow loads and stores."""
RANDOM = 17


@triton.jit
def _wide_pointers(addresses, first, DTYPES: tl.constexpr):
    """Returns pointers to the element ``first`` of parameters, codes of either moment and gradients, for a block that
    is `multi_tensor.vectorizable`.

    Accesses of parameters are 16 bytes; those of codes are as many elements, for one layout of all lists in a program's
    registers: another would go through shared memory.
    """
    CODES: tl.constexpr = 128 // DTYPES[0].primitive_bitwidth
    p = multi_tensor.pointer(addresses[0], DTYPES[0], True) + first
    m = tl.multiple_of(multi_tensor.pointer(addresses[1], DTYPES[1], False), CODES) + first
    v = tl.multiple_of(multi_tensor.pointer(addresses[2], DTYPES[2], False), CODES) + first
    g = multi_tensor.pointer(addresses[3], DTYPES[3], True) + first
    return p, m, v, g


@triton.jit(do_not_specialize=["tensors", "seed"])
def adam8bit_kernel(
    table,
    blocks,
    scale_table,
    first_map,
    second_map,
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
    QUANTISED: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Makes AdamW's step, where ``decay`` is 1 - lr wd. ``scale_table`` is like ``table``, of the scales of either
    moment. Both kinds of blocks, `multi_tensor.vectorizable` and not, share all but their loads and stores."""
    if optimizer_parts.skipped(found_inf):
        return
    tensor, first = multi_tensor.block(blocks, BLOCK)
    column, bits = multi_tensor.addresses(table, (0, 1, 2, 3), tensor, tensors)
    remaining = multi_tensor.elements(table, len(DTYPES), tensor, tensors) - first
    whole = multi_tensor.vectorizable(bits, remaining, BLOCK)
    here = tl.minimum(remaining, BLOCK).to(tl.int32)  # comparing 64 bits takes twice the instructions
    rows = tl.arange(0, BLOCK // QUANTISED)
    offsets = rows[:, None] * QUANTISED + tl.arange(0, QUANTISED)[None, :]
    mask, there = offsets < here, rows * QUANTISED < here
    place, whole_place = (tensor, first, offsets, mask), (tensor, first, offsets, None)
    pointers = multi_tensor.pointers(column, first, (0, 1, 2, 3), DTYPES, False)
    wide = _wide_pointers(column, first, DTYPES)
    if whole:
        p, g = low_bit_kernel.load(wide[0], offsets), low_bit_kernel.load(wide[3], offsets)
        first_codes, second_codes = tl.load(wide[1] + offsets), tl.load(wide[2] + offsets)
    else:
        p, g = optimizer_parts.load(pointers[0], place), optimizer_parts.load(pointers[3], place)
        first_codes = tl.load(pointers[1] + offsets, mask=mask, other=127)
        second_codes = tl.load(pointers[2] + offsets, mask=mask, other=0)

    scale_column, _ = multi_tensor.addresses(scale_table, (0, 1), tensor, tensors)
    scales = multi_tensor.pointers(scale_column, first // QUANTISED, (0, 1), (tl.float32, tl.float32), False)
    m = dynamic_map_kernel.decode(first_codes, first_map, 8, True)
    v = dynamic_map_kernel.decode(second_codes, second_map, 8, False)
    p, m, v = low_bit_kernel.adam(
        p,
        g * optimizer_parts.gradient_factor(clip),
        m,
        v,
        tl.load(scales[0] + rows, mask=there, other=0.0)[:, None],
        tl.load(scales[1] + rows, mask=there, other=0.0)[:, None],
        (beta1, one_minus_beta1),
        (beta2, one_minus_beta2),
        optimizer_parts.number(decay),
        optimizer_parts.number(step_size),
        optimizer_parts.number(inverse_root_correction),
        eps,
    )
    over_m, m_scales = low_bit_kernel.scaled(m)
    over_v, v_scales = low_bit_kernel.scaled(v)
    first_codes = dynamic_map_kernel.encode(over_m, first_map, 8, True).to(tl.uint8)
    second_codes = dynamic_map_kernel.encode(over_v, second_map, 8, False).to(tl.uint8)

    tl.store(scales[0] + rows, m_scales, mask=there)
    tl.store(scales[1] + rows, v_scales, mask=there)
    if whole:
        optimizer_parts.store(wide[0], whole_place, p, seed)
        tl.store(wide[1] + offsets, first_codes)
        tl.store(wide[2] + offsets, second_codes)
    else:
        optimizer_parts.store(pointers[0], place, p, seed)
        tl.store(pointers[1] + offsets, first_codes, mask=mask)
        tl.store(pointers[2] + offsets, second_codes, mask=mask)


def launch_tables() -> Tables:
    """Makes what a step keeps between calls: one for each list of parameters that is updated together."""
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
    """Makes AdamW's step number ``step`` (from 1), in place: one launch.

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
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "eps": eps,
        "decay": 1 - lr * weight_decay,
        "step_size": lr / correction,
        "inverse_root_correction": inverse_root,
    }
    numbers = low_bit_kernel.passed(hyper, group.table.device)
    maps = [dynamic_map_kernel.table_on(group.table.device, numbers) for numbers in (FIRST, SECOND)]
    with torch.cuda.device_of(group.table):
        adam8bit_kernel[(group.programs,)](
            group.table,
            group.blocks,
            scales.table,
            *maps,
            group.tensors,
            seed=optimizer_parts.seed_word(seed),
            clip=clip,
            found_inf=found_inf,
            **numbers,
            **_constants(group.dtypes, block),
            num_warps=optimizer_parts.NUM_WARPS,
            **optimizer_parts.OPTIONS,
        )
    optimizer_parts.note_change(parameters, first, second, first_scales, second_scales)


def _constants(dtypes: Sequence[torch.dtype], block: int) -> dict[str, Any]:
    names = {**optimizer_parts.DTYPES, torch.uint8: tl.uint8}
    return {
        "QUANTISED": block,
        "DTYPES": tuple(names[dtype] for dtype in dtypes),
        "BLOCK": optimizer_parts.BLOCK,
    }


def _manifest(parameter: torch.dtype, block: int = 2048, scaled: bool = False, stochastic: bool = False) -> Manifest:
    dtypes = (parameter, torch.uint8, torch.uint8, parameter)
    constants = _constants(dtypes, block)
    constants |= {} if scaled else dict.fromkeys(optimizer_parts.SCALARS)
    constants |= {} if stochastic else {"seed": None}
    types = {**optimizer_parts.ARGUMENTS, "scale_table": "*i64", "step_size": "*fp32", "seed": "*i32"}
    types |= {"first_map": "*i32", "second_map": "*i32"}
    types |= {"inverse_root_correction": "*fp32"}
    signature = {name: types.get(name, "fp32") for name in adam8bit_kernel.arg_names if name not in constants}
    wide = [parameter.itemsize]
    budget = optimizer_parts.streaming_budget(2 * wide, wide, registers=REGISTERS)
    return Manifest(
        kernel=adam8bit_kernel,
        signature=signature,
        constants=constants,
        elements_per_program=optimizer_parts.BLOCK,
        aligned=tuple(name for name, kind in signature.items() if kind.startswith("*")),
        num_warps=optimizer_parts.NUM_WARPS,
        options=optimizer_parts.OPTIONS,
        budget=replace(budget, shared_bytes=SHARED_BYTES, instructions_per_element=INSTRUCTIONS + RANDOM * stochastic),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32),
    "float32_256": _manifest(torch.float32, block=256),
    "bfloat16": _manifest(torch.bfloat16),
    "float32_256_scaled": _manifest(torch.float32, block=256, scaled=True),
    "bfloat16_256": _manifest(torch.bfloat16, block=256),
    "bfloat16_256_stochastic": _manifest(torch.bfloat16, block=256, stochastic=True),
}
