"""Computes the Walsh-Hadamard transform in Triton: many butterflies for each time that the numbers are read and
written.

H of n = l_1 l_2 ... l_p numbers is H of l_1 neighbours, then of l_2 numbers that are l_1 apart, and so on. A program
loads a tile of such numbers once, makes all butterflies of it in registers, and stores it:

    tile [length, columns]       numbers that are ``inner`` apart, of ``columns`` neighbours
    stage s                      [length / 2^(s+1), 2, 2^s columns]: sums and differences along the axis of 2

The first pass takes up to 2048 neighbours, each further one up to 128 numbers of 16 neighbours (64 bytes, two sectors
of memory): n = 2^25 is three passes of 8 bytes a number, where torch's operators make 25 of 24. Sums are of the same
pairs in the same order as in :func:`techniques.fine_tuning.intrinsic_dim.hadamard.butterflies`: the same bits.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.optimizer_parts import NUM_WARPS, OPTIONS

BLOCK = 2048
COLUMNS = 16


@triton.jit
def butterflies_kernel(source, target, inner, STAGES: tl.constexpr, COLUMNS: tl.constexpr):
    LENGTH: tl.constexpr = 1 << STAGES
    tiles = inner // COLUMNS
    program = tl.program_id(0)
    outer = (program // tiles).to(tl.int64)
    first = outer * LENGTH * inner + (program % tiles) * COLUMNS
    rows = tl.arange(0, LENGTH).to(tl.int64) * inner
    offsets = first + rows[:, None] + tl.arange(0, COLUMNS)[None, :]
    numbers = tl.load(source + offsets)
    for stage in tl.static_range(STAGES):
        pairs = tl.reshape(numbers, (LENGTH >> (stage + 1), 2, COLUMNS << stage))
        one, other = tl.split(tl.permute(pairs, (0, 2, 1)))
        pairs = tl.permute(tl.join(one + other, one - other), (0, 2, 1))
        numbers = tl.reshape(pairs, (LENGTH, COLUMNS))
    tl.store(target + offsets, numbers)


def walsh_hadamard(x: Tensor) -> Tensor:
    """Computes H x along the last dimension of ``x`` [..., n], float32 and contiguous, n a power of 2."""
    output, source = torch.empty_like(x), x
    if not x.numel():
        return output
    for stages, columns, inner in passes(x.shape[-1].bit_length() - 1):
        with torch.cuda.device_of(x):
            butterflies_kernel[(x.numel() // (columns << stages),)](
                source, output, inner, STAGES=stages, COLUMNS=columns, num_warps=NUM_WARPS, **OPTIONS
            )
        source = output  # the next passes work in place: a tile is read and written by one program
    return output


def passes(bits: int) -> list[tuple[int, int, int]]:
    """Plans the passes for n = 2^``bits``: the stages, columns and distance of numbers of each pass."""
    first, further = BLOCK.bit_length() - 1, (BLOCK // COLUMNS).bit_length() - 1
    plan, done = [(min(bits, first), 1, 1)], min(bits, first)
    while done < bits:
        stages = min(further, bits - done)
        plan.append((stages, BLOCK >> stages, 1 << done))
        done += stages
    return plan


def _manifest(stages: int, columns: int, constants: Mapping[str, int] = MappingProxyType({})) -> Manifest:
    accesses = (columns << stages) // (NUM_WARPS * 32 * 4)  # of a thread, of 16 bytes
    signature = {"source": "*fp32", "target": "*fp32", "inner": "i32"}
    arguments = {name: type for name, type in signature.items() if name not in constants}
    return Manifest(
        kernel=butterflies_kernel,
        signature=arguments,
        constants={"STAGES": stages, "COLUMNS": columns, **constants},
        elements_per_program=columns << stages,
        aligned=tuple(arguments),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=64,
            shared_bytes=BLOCK * 4,  # a butterfly of numbers in two threads passes through it
            wide_loads=accesses,
            wide_stores=accesses,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * 8,
        ),
    )


MANIFESTS = {"first": _manifest(11, 1, {"inner": 1}), "further": _manifest(7, 16), "last": _manifest(1, 1024)}
