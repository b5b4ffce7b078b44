"""Implements 1-bit SGD: the sign of each entry, two values for each column, and error feedback.

Seide, Fu, Droppo, Li & Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs" (Interspeech 2014), section 3; of each column of a gradient's matrix:

    a = g + e        bit_i = [a_i >= 0]        Q(a)_i = mean of the a_j that have the same bit        e = a - Q(a)

The two means are the pair of values with the least squared error. A column of n entries takes n / 8 + 8 bytes in the
place of 4 n. On CUDA a kernel adds, packs and remembers in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from techniques.communication.shared.dispatch import launchable
from techniques.communication.shared.exchange import Message
from techniques.communication.shared.ranks import GatheredRanks
from techniques.shared.packed import from_bytes, in_bytes


def columns(x: Tensor) -> Tensor:
    """Returns ``x`` as a matrix whose columns share values: [first dimension, the others]; a vector is one column."""
    return x.reshape(len(x) if x.ndim else 1, -1)


def one_bit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the means of the negative and of the other entries of each column of ``x``, [2, columns] in its dtype,
    and one bit an entry, row after row: uint8 [ceil(n / 8)]."""
    matrix = columns(x)
    positive = matrix >= 0
    sides = torch.stack([~positive, positive]).to(x.dtype)  # [2, rows, columns]
    means = (sides * matrix).sum(1) / sides.sum(1).clamp_(min=1)
    return means, in_bytes(positive.to(torch.uint8).view(1, -1), 1)[0]


def two_valued(means: Tensor, bits: Tensor, shape: torch.Size) -> Tensor:
    """Computes the inverse of :func:`one_bit`: each entry is the mean of its side of its column."""
    positive = from_bytes(bits.view(1, -1), 1, shape.numel()).view(-1, means.shape[1])
    return torch.where(positive.bool(), means[1], means[0]).view(shape)


@dataclass
class OneBitSGD(GatheredRanks):
    """``feedback=false`` forgets what the bits leave out."""

    def compress(self, x: Tensor) -> Message:
        return one_bit(x)

    def decompress(self, message: Message, shape: torch.Size) -> Tensor:
        means, bits = message
        return two_valued(means, bits, shape)

    def pack(self, gradient: Tensor, error: Tensor | None) -> tuple[Message, Tensor | None]:
        if launchable(gradient):
            from techniques.communication.onebit_sgd import kernel

            if kernel.takes(gradient.shape):
                left = (torch.zeros_like(gradient) if error is None else error) if self.feedback else None
                return kernel.pack(gradient, left), left
        return super().pack(gradient, error)
