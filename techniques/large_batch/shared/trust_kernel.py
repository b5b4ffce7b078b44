"""Computes each tensor's trust ratio from partial norms that another kernel left. For the kernels of ``lars`` and
``lamb``.

A pass over the parameters leaves for each of its programs two partial sums of squares, of weights and of updates. A
tensor's programs are neighbours, so its sums are two runs of numbers, from ``starts[tensor]`` to
``starts[tensor + 1]``; one program a tensor adds them up in a fixed order (no atomics: the same bits every time) and
leaves the ratio

    coefficient phi(||w||) / (||u|| + decay ||w|| + eps)          phi(z) = min(max(z, low), high)

or 1 where either norm is 0 or not a number. Its traffic is 8 bytes a block of elements: nothing.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.multi_tensor import Group

CHUNK = 1024


@triton.jit(do_not_specialize=["programs"])
def ratios_kernel(partials, starts, ratios, programs, coefficient, low, high, decay, eps, CHUNK: tl.constexpr):
    tensor = tl.program_id(0)
    last = tl.load(starts + tensor + 1)
    offsets = tl.arange(0, CHUNK)
    weights = tl.zeros((CHUNK,), tl.float32)
    updates = tl.zeros((CHUNK,), tl.float32)
    for first in range(tl.load(starts + tensor), last, CHUNK):
        mask = first + offsets < last
        weights += tl.load(partials + first + offsets, mask=mask, other=0.0)
        updates += tl.load(partials + programs + first + offsets, mask=mask, other=0.0)
    weight_norm = tl.sqrt_rn(tl.sum(weights))
    update_norm = tl.sqrt_rn(tl.sum(updates))
    length = tl.minimum(tl.maximum(weight_norm, low), high)
    ratio = tl.div_rn(coefficient * length, update_norm + decay * weight_norm + eps)
    tl.store(ratios + tensor, tl.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0))


@triton.jit
def ratio(ratios, tensor):
    """Loads the ratio that `trust_ratios` left for ``tensor``; 1 where ``ratios`` is None."""
    value = 1.0
    if ratios is not None:
        value = tl.load(ratios + tensor)
    return value


@triton.jit
def sums_over_block(
    function: tl.constexpr,
    arguments,
    table,
    blocks,
    tensors,
    programs,
    partials,
    ROWS: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Runs `multi_tensor.over_block` for a function that returns two sums over its place: this program's
    ``partials``."""
    tensor, first = multi_tensor.block(blocks, BLOCK)
    rows, bits = multi_tensor.addresses(table, ROWS, tensor, tensors)
    remaining = multi_tensor.elements(table, len(DTYPES), tensor, tensors) - first
    if multi_tensor.vectorizable(bits, remaining, BLOCK):
        place = (tensor, first, tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1))
        weights, updates = function(multi_tensor.pointers(rows, first, ROWS, DTYPES, True), place, *arguments)
        tl.store(partials + tl.program_id(0), weights)
        tl.store(partials + programs + tl.program_id(0), updates)
    else:
        all_weights = tl.zeros((), tl.float32)
        all_updates = tl.zeros((), tl.float32)
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                place = (tensor, first, offsets, offsets < remaining)
                weights, updates = function(multi_tensor.pointers(rows, first, ROWS, DTYPES, False), place, *arguments)
                all_weights += weights
                all_updates += updates
        tl.store(partials + tl.program_id(0), all_weights)
        tl.store(partials + programs + tl.program_id(0), all_updates)


def room(group: Group) -> Tensor:
    """Allocates an empty buffer for two sums of each program, the weights' first: float32 [2 programs]."""
    return torch.empty(2 * group.programs, dtype=torch.float32, device=group.table.device)


def trust_ratios(
    group: Group,
    partials: Tensor,
    *,
    coefficient: float = 1.0,
    low: float = 0.0,
    high: float = math.inf,
    decay: float = 0.0,
    eps: float = 0.0,
) -> Tensor:
    """Computes the module's formula for each of the group's tensors, float32 [tensors]: one launch."""
    ratios = torch.empty(group.tensors, dtype=torch.float32, device=partials.device)
    with torch.cuda.device_of(partials):
        ratios_kernel[(group.tensors,)](
            partials,
            group.starts,
            ratios,
            group.programs,
            coefficient,
            low,
            high,
            decay,
            eps,
            CHUNK=CHUNK,
            num_warps=optimizer_parts.NUM_WARPS,
            **optimizer_parts.OPTIONS,
        )
    return ratios


RATIOS_MANIFEST = Manifest(
    kernel=ratios_kernel,
    signature={
        "partials": "*fp32",
        "starts": "*i64",
        "ratios": "*fp32",
        "programs": "i32",
        **dict.fromkeys(("coefficient", "low", "high", "decay", "eps"), "fp32"),
    },
    constants={"CHUNK": CHUNK},
    elements_per_program=CHUNK,
    aligned=("partials", "starts", "ratios"),
    num_warps=optimizer_parts.NUM_WARPS,
    options=optimizer_parts.OPTIONS,
    budget=Budget(
        registers=64,
        shared_bytes=optimizer_parts.reduction_bytes(2),
        instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * 8,
    ),
)
