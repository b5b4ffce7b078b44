"""Packs whole numbers of few bits without waste where each row has a width of its own.

Bit k of all rows that have one is a plane. Rows are sorted by width, widest first, so that a plane's rows are the first
few; a byte of it holds one bit of eight columns, an eighth of a row apart::

    row 0   b0 b1 b2 b3        plane 0: rows 0 1 2      plane 2: rows 0 1
    row 1   b0 b1 b2           plane 1: rows 0 1 2      plane 3: row 0
    row 2   b0 b1

Of R rows with widths b and T columns that are sum(b) * ceil(T / 8) bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST = 16


def rows_of_planes(widths: Tensor) -> list[int]:
    """Counts how many rows have a bit 0, a bit 1, ...; reads ``widths`` (integers [R])."""
    counted = torch.bincount(widths.long(), minlength=WIDEST + 1)
    at_least = counted.flip(0).cumsum(0).flip(0)[1:]
    return [rows for rows in at_least.tolist() if rows]


def packed(values: Tensor, widths: Tensor, rows: Sequence[int]) -> Tensor:
    """Packs into uint8 [sum of ``rows``, ceil(T / 8)] the ``values`` [R, T], int32 in [0, 2^width) with ``widths`` [R]
    of at most 16; ``rows`` as :func:`rows_of_planes` gives it."""
    ordered = F.pad(values, (0, -values.shape[1] % 8))[_order(widths)]
    halves = (ordered & 0xFF).to(torch.uint8), (ordered >> 8).to(torch.uint8)
    place = _places(values)
    planes = []
    for bit, count in enumerate(rows):
        bits = (halves[bit // 8][:count] >> (bit % 8)) & 1
        planes.append((bits.view(count, 8, -1) << place).sum(1, dtype=torch.uint8))
    return torch.cat(planes)


def unpacked(planes: Tensor, widths: Tensor, rows: Sequence[int], columns: int) -> Tensor:
    """Returns the values, int32 [R, ``columns``]: the inverse of :func:`packed`."""
    place = _places(planes)
    halves = [planes.new_zeros(len(widths), 8, planes.shape[1]) for _ in range(2)]
    for bit, plane in enumerate(planes.split(list(rows))):
        halves[bit // 8][: len(plane)] |= ((plane[:, None] >> place) & 1) << (bit % 8)
    low, high = (half.flatten(1)[:, :columns].int() for half in halves)
    values = torch.empty_like(low)
    values[_order(widths)] = low + (high << 8)
    return values


def _order(widths: Tensor) -> Tensor:
    return widths.argsort(descending=True, stable=True)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device).view(8, 1)
