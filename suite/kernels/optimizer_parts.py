"""What the multi-tensor kernels of optimizers share beside the launch: scaled gradients, random rounding, joint norms.

Each is a device function that costs no pass over memory of its own:

* `gradient_factor`, `skipped`: mixed precision's loss scale and non-finite flag and a clipping factor, read from
  scalars on the device, so that the host need not wait for them;
* `random_bits`, `narrow_stochastic`: bfloat16 stores that round up with the probability of the dropped fraction.
  Unbiased, so updates smaller than half a unit in the last place are not lost (Gupta et al. 2015, section 3);
* `square_sums_kernel`, `total`: a norm over all tensors in one launch. A fixed number of programs leaves one partial
  sum each, and each program of the next launch adds them up: no atomics, so the same bits every time.

Import this module, not its functions: the machine code's cache then sees that a kernel depends on it.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget
from suite.kernels.portable import narrow

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
"""What kernels take, as Triton names it."""

PARTIALS = 1024
"""Partial sums of a norm at most: eight programs for each of an H100's or H200's 132 multiprocessors, all resident."""


@triton.jit
def gradient_factor(scale, clip):
    """What gradients are multiplied by: 1 / scale * clip. Each is a float32 pointer, or None for 1."""
    factor = 1.0
    if scale is not None:
        factor = 1.0 / tl.load(scale)
    if clip is not None:
        factor = factor * tl.load(clip)
    return factor


@triton.jit
def skipped(found_inf):
    """Whether the step is to be left out; ``found_inf`` is a float32 pointer (0: step), or None."""
    if found_inf is not None:
        return tl.load(found_inf) != 0.0
    else:
        return False


@triton.jit
def _mixed(x):
    """A bijection of 32-bit words in which each input bit flips each output bit half of the time (lowbias32)."""
    x = x ^ (x >> 16)
    x = tl.mul(x, 0x21F0AAAD, sanitize_overflow=False)
    x = x ^ (x >> 15)
    x = tl.mul(x, 0x735A2D97, sanitize_overflow=False)
    return x ^ (x >> 15)


@triton.jit
def random_bits(seed, tensor, first, offsets):
    """32 random bits (uint32) for the elements ``first + offsets`` of ``tensor``, the same whatever the block size.

    ``seed`` is an int32 that differs from step to step; keep it out of Triton's specialisation. A hash of the
    element's number at a tenth of Philox's instructions: good enough to round with, not to draw samples with.
    """
    stream = _mixed(seed.to(tl.uint32) ^ _mixed(tensor.to(tl.uint32)))
    stream = _mixed(stream ^ (first >> 32).to(tl.uint32))
    number = tl.add(first.to(tl.uint32), offsets.to(tl.uint32), sanitize_overflow=False)
    # Added after a multiplication: an exclusive or alone would give each stream the same words in another order.
    number = tl.mul(number, 0x9E3779B9, sanitize_overflow=False)
    return _mixed(tl.add(number, stream, sanitize_overflow=False))


@triton.jit
def narrow_stochastic(x, bits, DTYPE: tl.constexpr):
    """float32 ``x`` as ``DTYPE``; as bfloat16, rounded up or down with the lower 16 of ``bits``, so that E = x.

    NaN and infinity stay; between the largest bfloat16 and 2**128 the upper neighbour is infinity. Other dtypes are
    rounded to nearest.
    """
    if tl.bfloat16 == DTYPE:
        word = x.to(tl.uint32, bitcast=True)
        rounded = tl.add(word, bits & 0xFFFF, sanitize_overflow=False) >> 16
        # The carry would turn a NaN with a full mantissa into zero.
        kept = tl.where(x == x, rounded, (word >> 16) | 0x40)
        return kept.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return narrow(x, DTYPE)


@triton.jit
def total(partials, count, PARTIALS: tl.constexpr):
    """Sum of the first ``count`` <= ``PARTIALS`` float32 partial sums, the same bits in every program."""
    numbers = tl.arange(0, PARTIALS)
    return tl.sum(tl.load(partials + numbers, mask=numbers < count, other=0.0))


@triton.jit(do_not_specialize=["tensors", "programs"])
def square_sums_kernel(
    table, blocks, tensors, programs, partials,
    ROW: tl.constexpr, LISTS: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program's share of the sum of squares of the list ``ROW``, in float32, to ``partials``.

    ``programs`` is the length of ``blocks``, of which each program takes every ``num_programs``-th.
    """
    offsets = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for number in range(tl.program_id(0), programs, tl.num_programs(0)):
        tensor, first = multi_tensor.block(blocks + number - tl.program_id(0), BLOCK)
        address = multi_tensor.address(table, ROW, tensor, tensors)
        remaining = multi_tensor.elements(table, LISTS, tensor, tensors) - first
        if multi_tensor.vectorizable(address, remaining, BLOCK):
            x = tl.load(multi_tensor.pointer(address, DTYPE, True) + first + offsets).to(tl.float32)
            squares += x * x
        else:
            start = multi_tensor.pointer(address, DTYPE, False) + first
            here = tl.minimum(remaining, BLOCK).to(tl.int32)  # comparing 64 bits takes twice the instructions
            x = tl.load(start + offsets, mask=offsets < here, other=0.0).to(tl.float32)
            squares += x * x
    tl.store(partials + tl.program_id(0), tl.sum(squares))


def launchable(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels take these tensors: on one GPU, contiguous, float32 or bfloat16. Torch takes others."""
    if not tensors or not tensors[0].is_cuda:
        return False
    device = tensors[0].device
    return all(each.device == device and each.dtype in DTYPES and each.is_contiguous() for each in tensors)


def check_dtypes(dtypes: Sequence[torch.dtype]) -> None:
    """Raises TypeError where kernels do not know one of a launch's ``dtypes``."""
    if unknown := set(dtypes) - set(DTYPES):
        names = ", ".join(sorted(map(str, unknown)))
        raise TypeError(f"the kernel knows no {names}: give float32 or bfloat16 tensors")


def streaming_budget(
    read_bytes: Sequence[int], written_bytes: Sequence[int], block: int, num_warps: int, registers: int = 64
) -> Budget:
    """What a kernel may cost that reads and writes these bytes an element of each list once, in straight-line code.

    Every access of the whole blocks' path is 16 bytes wide. ``registers`` bounds how many programs share a
    multiprocessor's 65,536: some 30 KB of loads in flight there hide the latency of memory. Lists of one width share a
    layout; others meet in shared memory, one list of a program's block at a time.
    """
    accesses = block // (num_warps * 32 * multi_tensor.VECTOR_BYTES.value)  # of a thread, a byte of an element
    return Budget(
        registers=registers,
        shared_bytes=0 if len({*read_bytes, *written_bytes}) == 1 else block * 4,
        wide_loads=accesses * sum(read_bytes),
        wide_stores=accesses * sum(written_bytes),
        instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (sum(read_bytes) + sum(written_bytes)),
    )


def check_scalars(scalars: Sequence[Tensor | None], device: torch.device) -> None:
    """Raises ValueError for a scalar that is not one float32 on ``device``, where the kernel would read it."""
    for scalar in scalars:
        if scalar is not None and (
            scalar.numel() != 1 or scalar.dtype != torch.float32 or scalar.device.type != device.type
        ):
            raise ValueError(
                f"a scalar for the kernel is {tuple(scalar.shape)} {scalar.dtype} on {scalar.device}: "
                f"give one float32 on {device}"
            )


def seed_word(seed: int | None) -> int:
    """``seed``, of any size, as the int32 that `random_bits` takes; 0 for None, where nothing is drawn."""
    return 0 if seed is None else seed % 2**31
