"""Runs 1-bit Adam's two compressions, each with its error feedback in a single pass over memory.

What a tensor's signs leave out depends on its norm, so that remembering it would take a second pass. It is remembered
by halves instead: what was wanted, a, and the scale s that a was sent with, of which the next pass makes

    e = a - s sign(a)        a = x + e  ── written in the place of the old one ── its signs, a bit an entry
                                                                               ── a sum of squares of each program

A second launch adds the squares up, tensor by tensor, in an order of its own: equal inputs give equal scales. The
worker reads x and a and writes a and the bits, 12.125 bytes an entry; 5 FLOPs. The server's x is the mean of what it
got, N bits an entry: 8.125 + N / 8 bytes, 4 + 2 N FLOPs.

Tensors lie end to end, and a program's entries may be of several. Bits, scales and memories are those of
:mod:`techniques.communication.onebit_adam.two_sided` but for the order of the sums.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from techniques.communication.shared.exchange import Message

EIGHT = tl.constexpr(8)
ROWS = 512
BLOCK = ROWS * EIGHT.value
"""Entries of a program: ROWS bytes of bits."""
NUM_WARPS = 8
SUMS = 256  # partial sums that are added at once
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _place(n, ROWS: tl.constexpr):
    """Returns the program's bytes of bits, its entries [ROWS, 8] and which of them there are."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offsets = row[:, None] * EIGHT + tl.arange(0, EIGHT)[None, :]
    return row, offsets, offsets < n


@triton.jit
def _tensors(firsts, pairs):
    """Returns the tensors that the program's entries are of, from the first to before the last, and where their sums
    go."""
    first, pair = tl.load(firsts + tl.program_id(0)), tl.load(pairs + tl.program_id(0))
    return first, first + tl.load(pairs + tl.program_id(0) + 1) - pair, pair


@triton.jit
def _inside(starts, tensor, offsets):
    return (offsets >= tl.load(starts + tensor)) & (offsets < tl.load(starts + tensor + 1))


@triton.jit
def _sizes(scales, starts, first, last, offsets):
    """Loads each entry's scale, which is its tensor's."""
    sizes = tl.zeros_like(offsets).to(tl.float32)
    for tensor in range(first, last):
        sizes = tl.where(_inside(starts, tensor, offsets), tl.load(scales + tensor), sizes)
    return sizes


@triton.jit
def _left_out(memory, before, starts, first, last, offsets, mask):
    a = tl.load(memory + offsets, mask=mask, other=0.0)
    sizes = _sizes(before, starts, first, last, offsets)
    return a - tl.where(a >= 0.0, sizes, -sizes)


@triton.jit
def _written(a, memory, bits, sums, starts, first, last, pair, row, offsets, mask, n):
    tl.store(memory + offsets, a, mask=mask)
    codes = ((a >= 0.0) & mask).to(tl.int32) << tl.arange(0, EIGHT)[None, :]
    tl.store(bits + row, tl.sum(codes, 1).to(tl.uint8), mask=row < n // EIGHT)
    for tensor in range(first, last):
        squares = tl.where(_inside(starts, tensor, offsets) & mask, a * a, 0.0)
        tl.store(sums + pair + tensor - first, tl.sum(tl.sum(squares, 1), 0))


@triton.jit
def worker_kernel(x, memory, before, bits, sums, starts, firsts, pairs, n, ROWS: tl.constexpr):
    row, offsets, mask = _place(n, ROWS)
    first, last, pair = _tensors(firsts, pairs)
    own = tl.load(x + offsets, mask=mask, other=0.0)
    a = own + _left_out(memory, before, starts, first, last, offsets, mask)
    _written(a, memory, bits, sums, starts, first, last, pair, row, offsets, mask, n)


@triton.jit
def server_kernel(
    received, scales, memory, before, bits, sums, starts, firsts, pairs, n, tensors, ranks, ROWS: tl.constexpr
):
    """Compresses ``received`` [ranks, n / 8] and ``scales`` [ranks, tensors]: what the ranks have sent."""
    row, offsets, mask = _place(n, ROWS)
    first, last, pair = _tensors(firsts, pairs)
    a = _left_out(memory, before, starts, first, last, offsets, mask)
    for rank in range(ranks):
        theirs = tl.load(received + rank * (n // EIGHT) + row, mask=row < n // EIGHT, other=0).to(tl.int32)
        positive = ((theirs[:, None] >> tl.arange(0, EIGHT)[None, :]) & 1) != 0
        sizes = _sizes(scales + rank * tensors, starts, first, last, offsets)
        a += tl.div_rn(tl.where(positive, sizes, -sizes), ranks * 1.0)
    _written(a, memory, bits, sums, starts, first, last, pair, row, offsets, mask, n)


@triton.jit
def scales_kernel(sums, bounds, starts, scales, SUMS: tl.constexpr):
    """Computes, of each tensor, the root of its mean square."""
    tensor = tl.program_id(0)
    low, high = tl.load(bounds + tensor), tl.load(bounds + tensor + 1)
    total = tl.zeros((SUMS,), tl.float32)
    for at in range(low, high, SUMS):
        place = at + tl.arange(0, SUMS)
        total += tl.load(sums + place, mask=place < high, other=0.0)
    entries = (tl.load(starts + tensor + 1) - tl.load(starts + tensor)).to(tl.float32)
    tl.store(scales + tensor, tl.div_rn(tl.sqrt_rn(tl.sum(total, 0)), tl.sqrt_rn(entries)))


class Tables(NamedTuple):
    """Says where tensors lie, int32 on the device. ``starts`` [tensors + 1]: their first entries; ``firsts``
    [programs]: the tensor of a program's first entry; ``pairs`` [programs + 1]: how many sums come before a program's;
    ``bounds`` [tensors + 1]: which of them are a tensor's; of ``sums``."""

    starts: Tensor
    firsts: Tensor
    pairs: Tensor
    bounds: Tensor
    sums: int


@lru_cache(maxsize=8)
def tables(lengths: tuple[int, ...], device: torch.device) -> Tables:
    """Builds the tables of tensors of these lengths, end to end."""
    sizes = torch.tensor(lengths)
    ends = sizes.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends])
    begins = torch.arange(0, int(ends[-1]), BLOCK)
    firsts = torch.searchsorted(ends, begins, right=True)
    lasts = torch.searchsorted(starts[:-1].contiguous(), (begins + BLOCK).clamp(max=int(ends[-1])))
    pairs = torch.cat([ends.new_zeros(1), (lasts - firsts).cumsum(0)])
    tensors = torch.cat([torch.arange(first, last) for first, last in zip(firsts, lasts, strict=True)])
    bounds = torch.searchsorted(tensors, torch.arange(len(lengths) + 1))
    starts, firsts, pairs, bounds = (tensor.to(torch.int32).to(device) for tensor in (starts, firsts, pairs, bounds))
    return Tables(starts, firsts, pairs, bounds, len(tensors))


def from_worker(x: Tensor, memory: Tensor, before: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns what a worker sends of flat ``x`` [n], tensors of these lengths, and of what it left out: their scales,
    and bits [n / 8]. In place: its ``memory`` [n] and the scales ``before`` of the last time; of zeros, a memory is
    what was left out. All float32, n a multiple of 8 and less than 2^31."""
    return _launched(worker_kernel, (x,), memory, before, lengths)


def from_server(
    messages: tuple[Tensor, Tensor], memory: Tensor, before: Tensor, lengths: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Returns what a server sends of the mean of its ranks' ``messages``, scales [ranks, tensors] and bits [ranks, n /
    8], and of what it left out; as :func:`from_worker`."""
    scales, bits = messages
    return _launched(server_kernel, (bits, scales), memory, before, lengths, tensors=len(lengths), ranks=len(bits))


@dataclass(frozen=True)
class WithScales:
    """Holds the memories of a worker and of a server as these kernels keep them."""

    worker: Tensor
    server: Tensor
    worker_scales: Tensor
    server_scales: Tensor

    def from_worker(self, x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        return from_worker(x, self.worker, self.worker_scales, tuple(lengths))

    def from_server(self, messages: Sequence[Message], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        scales, bits = (torch.stack(parts) for parts in zip(*messages, strict=True))
        return from_server((scales, bits), self.server, self.server_scales, tuple(lengths))


def _launched(
    kernel: Any, inputs: tuple[Tensor, ...], memory: Tensor, before: Tensor, lengths: tuple[int, ...], **counts: int
) -> tuple[Tensor, Tensor]:
    n, at = len(memory), tables(lengths, memory.device)
    bits = torch.empty(n // EIGHT.value, dtype=torch.uint8, device=memory.device)
    sums = torch.empty(at.sums, device=memory.device)
    with torch.cuda.device_of(memory):
        kernel[(len(at.firsts),)](
            *inputs,
            memory,
            before,
            bits,
            sums,
            at.starts,
            at.firsts,
            at.pairs,
            n,
            **counts,
            ROWS=ROWS,
            num_warps=NUM_WARPS,
            **OPTIONS,
        )
        scales_kernel[(len(lengths),)](sums, at.bounds, at.starts, before, SUMS=SUMS, num_warps=1, **OPTIONS)
    return before.clone(), bits


def _manifest(kernel: Any, read: int, moved: float, **budget: Any) -> Manifest:
    """Describes the kernel; ``read``: lists of floats that are read, ``moved`` bytes an entry."""
    types = {"bits": "*u8", "received": "*u8", "starts": "*i32", "firsts": "*i32", "pairs": "*i32"}
    counts = dict.fromkeys(("n", "tensors", "ranks"), "i32")
    names = [name for name in kernel.arg_names if name != "ROWS"]
    accesses = BLOCK * 4 // (NUM_WARPS * 32 * 16)
    return Manifest(
        kernel=kernel,
        signature={name: (types | counts).get(name, "*fp32") for name in names},
        constants={"ROWS": ROWS},
        elements_per_program=BLOCK,
        aligned=tuple(name for name in names if name not in ("tensors", "ranks")),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            wide_loads=read * accesses,
            wide_stores=accesses,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * moved,
            **budget,
        ),
    )


MANIFESTS = {
    "worker": _manifest(worker_kernel, 2, 12.125, registers=128),
    "worker:scales": Manifest(
        kernel=scales_kernel,
        signature={"sums": "*fp32", "bounds": "*i32", "starts": "*i32", "scales": "*fp32"},
        constants={"SUMS": SUMS},
        elements_per_program=SUMS,
        aligned=("sums", "bounds", "starts", "scales"),
        num_warps=1,
        options=OPTIONS,
        budget=Budget(registers=64),
    ),
    "server": _manifest(server_kernel, 1, 9.125, registers=128),
}
