"""Keeps N of M consecutive numbers: which are the largest, and the form in which sparse tensor cores take them.

For ``sparse24``, which prunes weights so, and ``dfss``, which prunes scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def largest_of_each(scores: Tensor, n: int, m: int) -> Tensor:
    """Returns bool [..., keys]: of each ``m`` consecutive ``scores`` the ``n`` largest, of equal ones the first. The
    last group may be short. Raises ValueError unless 1 <= n <= m."""
    if not 1 <= n <= m:
        raise ValueError(f"of {m} scores 1 to {m} can be kept, not {n}")
    keys = scores.shape[-1]
    groups = F.pad(scores, (0, -keys % m), value=-math.inf).unflatten(-1, (-1, m))
    ranks = groups.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return (ranks < n).flatten(-2)[..., :keys]


class Packed(NamedTuple):
    """Holds scores as sparse tensor cores take them: ``values`` [..., keys N / M], and ``places`` uint8 [..., keys N /
    M], where in its group each stood, 2 bits on the hardware."""

    values: Tensor
    places: Tensor

    @property
    def bytes(self) -> float:
        """Counts the bytes, with 2 bits a place."""
        return self.values.numel() * (self.values.element_size() + 0.25)


def packed(scores: Tensor, n: int, m: int) -> Packed:
    """Packs the ``n`` largest of each ``m`` consecutive ``scores`` [..., keys], in their order; m divides the keys.

    Raises ValueError where it does not.
    """
    if scores.shape[-1] % m:
        raise ValueError(f"{scores.shape[-1]} keys are no whole groups of {m}: pad them")
    mask = largest_of_each(scores, n, m).unflatten(-1, (-1, m))
    places = mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :n]
    values = scores.unflatten(-1, (-1, m)).gather(-1, places)
    return Packed(values.flatten(-2), places.to(torch.uint8).flatten(-2))


def unpacked(form: Packed, n: int, m: int, rest: float) -> Tensor:
    """Returns the scores [..., keys] again, ``rest`` where none was kept."""
    values, places = (tensor.unflatten(-1, (-1, n)) for tensor in form)
    whole = torch.full((*values.shape[:-1], m), rest, dtype=values.dtype, device=values.device)
    return whole.scatter(-1, places.long(), values).flatten(-2)
