"""Finds the k entries of the largest magnitude, exactly, without sorting; gradient and memory added and parted on the
way.

The 31 bits of a float's magnitude, as an integer, are in its order. So the k-th largest is found digit by digit::

    add       a = g + e written in the place of e; how many entries have each first digit     reads 8 bytes, writes 4
    choose    the digit of the k-th largest, and how many of those that share it are wanted    of a histogram
    count     the next digit, of entries that share the ones before                            reads 4, twice
    tally     of each block how many entries are larger than the k-th, how many equal it       reads 4
    compact   values and indices, in the order of the indices; what is sent leaves the memory  reads 4, writes 12 k / n

Of entries that equal the k-th the first are taken: equal inputs give equal bytes, whatever the order of the programs.
NaN is larger than all else, as in torch.topk; where what is sent is not finite, the memory becomes NaN.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest

BLOCK = 4096
NUM_WARPS = 8
DIGITS = ((20, 11), (10, 10), (0, 10))
"""Lowest bit and bits of each digit, the first digit first."""
OPTIONS = {"enable_fp_fusion": False}
HISTOGRAM = 60  # instructions an entry at most, of which counting in shared memory takes most


@triton.jit
def _magnitude(x):
    return (x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _block(n, BLOCK: tl.constexpr):
    """Returns the offsets of the program's entries, and which of them there are."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return offsets, offsets < n


@triton.jit
def _add_to(histogram, digit, counted, BITS: tl.constexpr):
    here = tl.histogram(digit, 1 << BITS, mask=counted)
    tl.atomic_add(histogram + tl.arange(0, 1 << BITS), here, mask=here > 0, sem="relaxed")


@triton.jit
def add_kernel(gradients, errors, histogram, n, FEEDBACK: tl.constexpr, BLOCK: tl.constexpr):
    offsets, mask = _block(n, BLOCK)
    a = tl.load(gradients + offsets, mask=mask, other=0.0)
    if FEEDBACK:
        a += tl.load(errors + offsets, mask=mask, other=0.0)
        tl.store(errors + offsets, a, mask=mask)
    _add_to(histogram, _magnitude(a) >> 20, mask, 11)


@triton.jit
def choose_kernel(histogram, chosen, BITS: tl.constexpr):
    """Chooses the next digit; ``chosen``: the digits so far, and how many entries of those that share them are wanted;
    in place."""
    digit = tl.arange(0, 1 << BITS)
    counts = tl.load(histogram + digit)
    wanted = tl.load(chosen + 1)
    here_and_above = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
    own = tl.max(tl.where(here_and_above >= wanted, digit, 0), 0)
    tl.store(chosen, (tl.load(chosen) << BITS) | own)
    tl.store(chosen + 1, wanted - tl.sum(tl.where(digit > own, counts, 0), 0))


@triton.jit
def count_kernel(values, histogram, chosen, n, SHIFT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    offsets, mask = _block(n, BLOCK)
    size = _magnitude(tl.load(values + offsets, mask=mask, other=0.0))
    shares = mask & (size >> (SHIFT + BITS) == tl.load(chosen))
    _add_to(histogram, (size >> SHIFT) & ((1 << BITS) - 1), shares, BITS)


@triton.jit
def tally_kernel(values, larger, equal, chosen, n, BLOCK: tl.constexpr):
    offsets, mask = _block(n, BLOCK)
    size, least = _magnitude(tl.load(values + offsets, mask=mask, other=0.0)), tl.load(chosen)
    tl.store(larger + tl.program_id(0), tl.sum(((size > least) & mask).to(tl.int32), 0))
    tl.store(equal + tl.program_id(0), tl.sum(((size == least) & mask).to(tl.int32), 0))


@triton.jit
def compact_kernel(values, larger, equal, chosen, top_values, indices, n, FEEDBACK: tl.constexpr, BLOCK: tl.constexpr):
    """Stores the largest entries of a block, where ``larger`` and ``equal`` are of all blocks up to this one, added
    up."""
    offsets, mask = _block(n, BLOCK)
    a = tl.load(values + offsets, mask=mask, other=0.0)
    size, least, ties = _magnitude(a), tl.load(chosen), tl.load(chosen + 1)
    more, same = (size > least) & mask, (size == least) & mask
    equal_before = tl.load(equal + tl.program_id(0)) - tl.sum(same.to(tl.int32), 0)
    before = tl.load(larger + tl.program_id(0)) - tl.sum(more.to(tl.int32), 0) + tl.minimum(equal_before, ties)
    sent = more | (same & (equal_before + tl.cumsum(same.to(tl.int32), 0) <= ties))
    place = before + tl.cumsum(sent.to(tl.int32), 0) - 1
    tl.store(top_values + place, a, mask=sent)
    tl.store(indices + place, offsets.to(tl.int32), mask=sent)
    if FEEDBACK:
        tl.store(values + offsets, a - a, mask=sent)


def top_k(gradient: Tensor, errors: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Returns the values and flat indices, int32 and ascending, of the ``count`` entries of ``gradient`` and ``errors``
    together with the largest magnitudes; ``errors`` in place, none where they are None. Both are float32, contiguous,
    not empty, of less than 2^31 entries."""
    n, device = gradient.numel(), gradient.device
    blocks = triton.cdiv(n, BLOCK)
    histograms = torch.zeros(sum(1 << bits for _, bits in DIGITS), dtype=torch.int32, device=device)
    first, *others = histograms.split([1 << bits for _, bits in DIGITS])
    chosen = torch.tensor([0, count], dtype=torch.int32).to(device)
    larger, equal = (torch.empty(blocks, dtype=torch.int32, device=device) for _ in range(2))
    top_values, indices = (torch.empty(count, dtype=kind, device=device) for kind in (torch.float32, torch.int32))
    feedback = errors is not None
    values = gradient if errors is None else errors
    options: dict[str, Any] = {"BLOCK": BLOCK, "num_warps": NUM_WARPS, **OPTIONS}
    with torch.cuda.device_of(gradient):
        add_kernel[(blocks,)](gradient, errors, first, n, FEEDBACK=feedback, **options)
        choose_kernel[(1,)](first, chosen, BITS=DIGITS[0][1], num_warps=NUM_WARPS)
        for histogram, (shift, bits) in zip(others, DIGITS[1:], strict=True):
            count_kernel[(blocks,)](values, histogram, chosen, n, SHIFT=shift, BITS=bits, **options)
            choose_kernel[(1,)](histogram, chosen, BITS=bits, num_warps=NUM_WARPS)
        tally_kernel[(blocks,)](values, larger, equal, chosen, n, **options)
        larger, equal = larger.cumsum(0, dtype=torch.int32), equal.cumsum(0, dtype=torch.int32)
        compact_kernel[(blocks,)](values, larger, equal, chosen, top_values, indices, n, FEEDBACK=feedback, **options)
    return top_values, indices


def _manifest(kernel: Any, read: int, moved: int, extra: int = 0, **constants: Any) -> Manifest:
    """Describes the kernel; ``read``: lists of floats that are read, ``moved`` bytes an entry; ``extra`` instructions
    beside those that run while they move."""
    types = {"gradients": "*fp32", "errors": "*fp32", "values": "*fp32", "top_values": "*fp32", "n": "i32"}
    names = [name for name in kernel.arg_names if name not in ("FEEDBACK", "BLOCK", "SHIFT", "BITS")]
    accesses = BLOCK * 4 // (NUM_WARPS * 32 * 16)
    return Manifest(
        kernel=kernel,
        signature={name: types.get(name, "*i32") for name in names},
        constants=constants,
        elements_per_program=constants.get("BLOCK", 1 << constants.get("BITS", 0)),
        aligned=tuple(names),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=128,
            shared_bytes=20 * 1024,
            wide_loads=read * accesses if "BLOCK" in constants else None,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * moved + extra,
        ),
    )


MANIFESTS = {
    "float32": _manifest(add_kernel, 2, 12, FEEDBACK=True, BLOCK=BLOCK),
    "float32:choose": _manifest(choose_kernel, 0, 4, HISTOGRAM, BITS=11),
    "float32:count": _manifest(count_kernel, 1, 4, HISTOGRAM, SHIFT=10, BITS=10, BLOCK=BLOCK),
    "float32:tally": _manifest(tally_kernel, 1, 4, BLOCK=BLOCK),
    "float32:compact": _manifest(compact_kernel, 1, 4, HISTOGRAM, FEEDBACK=True, BLOCK=BLOCK),
}
