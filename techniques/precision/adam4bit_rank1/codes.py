"""Packs codes of 4 bits, two a byte: the signed map by groups of 128, and scales of rank one (2309.01507, section
4)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from techniques.precision.shared.dynamic_map import DynamicMap
from techniques.precision.shared.low_bit import reciprocal

FIRST = DynamicMap(4, signed=True)
LEVELS = 16
BLOCK = 128


def packed(codes: Tensor) -> Tensor:
    """Packs two codes below 16 a byte, uint8 [ceil(n / 2)]: the even one in the low half."""
    low, high = pad(codes.view(-1), (0, codes.numel() % 2)).view(-1, 2).unbind(1)
    return low | (high << 4)


def unpacked(pairs: Tensor, count: int) -> Tensor:
    """Returns the ``count`` codes of ``pairs``."""
    return torch.stack([pairs & 15, pairs >> 4], 1).view(-1)[:count]


def encode_rank1(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, uint8 of v's shape, and the largest of each row and column of a non-negative float32 matrix
    (section 4.2): the nearest of 1/16, 2/16, ..., 1 to v_ij / min(r_i, c_j). Zero is none of them, so that nothing is
    divided by it (section 4.1)."""
    rows, columns = v.amax(1), v.amax(0)
    over = v * reciprocal(torch.minimum(rows[:, None], columns))
    return over.mul_(LEVELS).round_().clamp_(1, LEVELS).sub_(1).nan_to_num_(0.0).to(torch.uint8), rows, columns


def decode_rank1(codes: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns float32 of the codes' shape: (code + 1) / 16 of the smaller of the row's and the column's largest."""
    return codes.float().add_(1).div_(LEVELS).mul_(torch.minimum(rows[:, None], columns))
