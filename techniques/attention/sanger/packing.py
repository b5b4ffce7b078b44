"""Packs a mask as Sanger's array takes it: rows are cut into vectors, empty ones are left out and full ones split.

Section 4 of the paper, as in the authors' load-balance script: each row of the mask is cut into vectors of ``width``
keys; a vector without a kept pair is left out; one with z kept pairs becomes ceil(z / p) sub-rows of at most p pairs,
p being the processing elements of a row. Each sub-row takes a row of the array for one pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, ELEMENTS = 64, 16  # keys of a vector; processing elements of a row of the array


class SubRow(NamedTuple):
    """Holds the kept pairs that one row of the array computes at once: of ``row``, at these ``keys``, p at most."""

    row: int
    keys: tuple[int, ...]


def vectors(mask: Tensor, width: int = WIDTH) -> Tensor:
    """Counts, as int64 [..., rows, ceil(keys / width)]: the kept pairs of each vector of ``mask`` [..., rows, keys]."""
    return F.pad(mask, (0, -mask.shape[-1] % width)).unflatten(-1, (-1, width)).sum(-1)


def sub_rows(mask: Tensor, width: int = WIDTH, elements: int = ELEMENTS) -> list[SubRow]:
    """Returns the packed and split form of one mask [rows, keys]: each of its kept pairs in one sub-row."""
    if width < 1 or elements < 1:
        raise ValueError(f"a vector has 1 key or more and a row 1 element or more, not {width} and {elements}")
    parts = []
    for row, keys in enumerate(mask):
        for first in range(0, mask.shape[-1], width):
            own = (keys[first : first + width].nonzero()[:, 0] + first).tolist()
            parts += [SubRow(row, tuple(own[i : i + elements])) for i in range(0, len(own), elements)]
    return parts


def load_balance(mask: Tensor, width: int = WIDTH, elements: int = ELEMENTS, split: bool = True) -> float:
    """Returns the share of the array's elements that compute a kept pair, in (0, 1].

    Without ``split`` a vector takes as many passes as the fullest one. Raises ValueError for a mask that keeps nothing.
    """
    counts = vectors(mask, width).flatten()
    passes = torch.ceil(counts[counts > 0] / elements)
    if not len(passes):
        raise ValueError("the mask keeps no pair: an array without work has no balance")
    taken = passes.sum() if split else passes.max() * len(passes)
    return (counts.sum() / (elements * taken)).item()
