"""Computes a mean over ranks of signs, compressed on the way there and on the way back, with an error memory on either
side.

Tang et al., "1-bit Adam" (ICML 2021, arXiv 2102.02888), section 4.1 and figure 3; of rank n, and of the server of the
j-th part of the vector, which is rank j:

    a = x_n + e_n         C(a) = ||a|| / sqrt(length) sign(a), of each tensor       e_n = a - C(a)       sent to servers
    b = mean_n C(a)_j + E_j                                                         E_j = b - C(b)       sent to all
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from techniques.communication.shared.exchange import Message, from_bytes, gathered, in_bytes
from techniques.shared import packed


@dataclass(frozen=True)
class Layout:
    """Lays tensors of ``lengths`` end to end, padded, and divides them among ``ranks`` servers in equal parts of whole
    bytes of signs."""

    lengths: tuple[int, ...]
    ranks: int

    @property
    def part(self) -> int:
        """Returns the number of entries of a server's part."""
        return 8 * math.ceil(sum(self.lengths) / (8 * self.ranks))

    @property
    def padded(self) -> int:
        return self.ranks * self.part

    @property
    def whole(self) -> list[int]:
        """Returns the lengths of the tensors, and of the padding where there is some."""
        rest = self.padded - sum(self.lengths)
        return [*self.lengths, *([rest] if rest else [])]

    def pieces(self, rank: int) -> list[tuple[int, int]]:
        """Returns what lies in a server's part: number of a tensor, and how many entries of it."""
        pieces, start = [], 0
        for number, length in enumerate(self.whole):
            low, high = max(start, rank * self.part), min(start + length, (rank + 1) * self.part)
            if low < high:
                pieces.append((number, high - low))
            start += length
        return pieces


def signs(x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Computes ||x|| / sqrt(length) of each of the tensors of ``lengths`` that flat ``x`` is made of, float32, and a
    bit an entry: whether it is at least 0, uint8 [n / 8]."""
    scales = torch.stack([tensor.norm() / math.sqrt(len(tensor)) for tensor in x.split(list(lengths))])
    return scales, packed.in_bytes((x >= 0).to(torch.uint8).view(1, -1), 1)[0]


def signed(scales: Tensor, bits: Tensor, lengths: Sequence[int]) -> Tensor:
    """Computes the inverse of :func:`signs`, float32 [sum of lengths]."""
    counts = torch.tensor(lengths, device=scales.device)
    positive = packed.from_bytes(bits.view(1, -1), 1, 8 * len(bits))[0].bool()
    sizes = scales.repeat_interleave(counts, output_size=len(positive))
    return torch.where(positive, sizes, -sizes)


def left_out(wanted: Tensor, scales: Tensor, lengths: Sequence[int]) -> Tensor:
    """Returns what signs of flat ``wanted`` leave out of it, that were sent with the ``scales`` of its tensors."""
    counts = torch.tensor(lengths, device=scales.device)
    sizes = scales.repeat_interleave(counts, output_size=len(wanted))
    return wanted - torch.where(wanted >= 0, sizes, -sizes)


class Memories(Protocol):
    """Holds what a worker and a server remember. Each adds to what it is given what it left out before, and says what
    it sends of that: scales of tensors of ``lengths`` end to end, and bits."""

    def from_worker(self, x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns what a worker sends of flat ``x``."""

    def from_server(self, messages: Sequence[Message], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns what a server sends of the mean of the ranks' scales and bits."""


@dataclass(frozen=True)
class LeftOut:
    """Keeps the memories ``worker`` [padded] and ``server`` [part] of what was left out, in place, by torch's
    operators."""

    worker: Tensor
    server: Tensor

    def from_worker(self, x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        self.worker.add_(x)
        scales, bits = signs(self.worker, lengths)
        self.worker.sub_(signed(scales, bits, lengths))
        return scales, bits

    def from_server(self, messages: Sequence[Message], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        for scales, bits in messages:
            self.server.add_(signed(scales, bits, lengths) / len(messages))
        scales, bits = signs(self.server, lengths)
        self.server.sub_(signed(scales, bits, lengths))
        return scales, bits


def mean_of_signs(x: Tensor, memories: Memories, layout: Layout, group: ProcessGroup) -> Tensor:
    """Computes the ranks' mean of flat ``x`` [padded], in one bit an entry there and back: the same on every rank. One
    all-to-all, one all-gather."""
    own, servers = group.rank(), range(layout.ranks)
    scales, bits = memories.from_worker(x, layout.whole)
    parts = [[number for number, _ in layout.pieces(server)] for server in servers]
    messages = [(scales[numbers], part) for numbers, part in zip(parts, bits.chunk(layout.ranks), strict=True)]
    outgoing = [in_bytes([message]) for message in messages]
    received = torch.empty(layout.ranks * len(outgoing[own]), dtype=torch.uint8, device=x.device)
    sizes = [len(outgoing[own])] * layout.ranks
    dist.all_to_all_single(received, torch.cat(outgoing), sizes, [len(message) for message in outgoing], group=group)
    theirs = [from_bytes(message, [messages[own]])[0] for message in received.view(layout.ranks, -1)]
    return _spread(*memories.from_server(theirs, [count for _, count in layout.pieces(own)]), layout, group)


def _spread(scales: Tensor, bits: Tensor, layout: Layout, group: ProcessGroup) -> Tensor:
    """Gathers every server's part, decoded. Parts have different numbers of scales: all send as many as the most."""
    most = max(len(layout.pieces(rank)) for rank in range(layout.ranks))
    message = (torch.nn.functional.pad(scales, (0, most - len(scales))), bits)
    decoded = []
    for rank, ((their_scales, their_bits),) in enumerate(gathered([message], group)):
        lengths = [count for _, count in layout.pieces(rank)]
        decoded.append(signed(their_scales[: len(lengths)], their_bits, lengths))
    return torch.cat(decoded)
