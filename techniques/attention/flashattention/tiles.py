"""Computes FlashAttention tile by tile, with every access to slow memory counted (Dao et al. 2022, algorithms 1 and 4).

One head: q, k, v are [n, d]. Arithmetic happens on copies in fast memory; ``Memory.load`` and ``Memory.store`` are the
only ways between the two, so the counts are those of the algorithm and not of a formula. The formulas (theorem 2) stand
at the end. Partial results (m, l, O) of disjoint key blocks merge exactly and in any order: that is the whole idea.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass
class Memory:
    """Counts elements that cross between slow and fast memory."""

    loaded: int = 0
    stored: int = 0

    def load(self, tensor: Tensor) -> Tensor:
        self.loaded += tensor.numel()
        return tensor.clone()

    def store(self, place: Tensor, tensor: Tensor) -> None:
        self.stored += tensor.numel()
        place.copy_(tensor)

    @property
    def accesses(self) -> int:
        return self.loaded + self.stored


class Partial(NamedTuple):
    """Holds the attention of some rows to some keys: row maximum m [r], row sum l [r] of exp(s - m), normalised output
    o [r, d].

    A row that sees no key has m = -inf, l = 0, o = 0: the neutral element of :func:`merged`.
    """

    m: Tensor
    l: Tensor  # noqa: E741  the paper's name
    o: Tensor


def partial(scores: Tensor, v: Tensor) -> Partial:
    """Computes the attention of [r, c] scores (-inf where masked) over v [c, d]."""
    m = scores.amax(dim=1)
    p = torch.exp(scores - finite(m)[:, None])
    total = p.sum(dim=1)
    return Partial(m, total, p @ v / positive(total)[:, None])


def merged(a: Partial, b: Partial) -> Partial:
    """Computes the attention over the union of the two key sets; associative and commutative (algorithm 1, lines 11 and
    12)."""
    m = torch.maximum(a.m, b.m)
    weight_a, weight_b = a.l * torch.exp(a.m - finite(m)), b.l * torch.exp(b.m - finite(m))
    total = weight_a + weight_b
    o = (weight_a[:, None] * a.o + weight_b[:, None] * b.o) / positive(total)[:, None]
    return Partial(m, total, o)


def finite(m: Tensor) -> Tensor:
    """Returns a maximum that may be subtracted: exp(-inf - 0) is 0, exp(-inf + inf) would be nan."""
    return m.masked_fill(m == -math.inf, 0.0)


def positive(total: Tensor) -> Tensor:
    """Returns a sum that may be divided by; rows without keys have numerator 0."""
    return total.masked_fill(total == 0, 1.0)


def block_sizes(fast: int, d: int) -> tuple[int, int]:
    """Returns the rows of a query and of a key tile for ``fast`` elements of fast memory: B_r = min(B_c, d), B_c =
    ceil(M/4d)."""
    columns = math.ceil(fast / (4 * d))
    return min(columns, d), columns


def tiles(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class Forward(NamedTuple):
    """Holds the output o [n, d] and the statistics m, l [n] that the backward pass recomputes the probabilities
    from."""

    o: Tensor
    m: Tensor
    l: Tensor  # noqa: E741


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    memory: Memory,
    rows: int,
    columns: int,
    *,
    mask: Tensor | None = None,
    order: Sequence[int] | None = None,
) -> Forward:
    """Runs algorithm 1: key tiles outside, query tiles inside; o, m and l live in slow memory between visits.

    ``mask`` [n, n] is True where a query sees a key; a tile that sees none is skipped and moves nothing (section 3.3).
    The mask itself is not counted: causal and block masks are arithmetic, not data. ``order`` permutes the key tiles.
    """
    n, d = q.shape
    scale = 1 / math.sqrt(d)
    out = Forward(torch.zeros_like(q), q.new_full((n,), -math.inf), q.new_zeros(n))
    key_tiles = tiles(n, columns)
    for j in order if order is not None else range(len(key_tiles)):
        column = key_tiles[j]
        if mask is not None and not mask[:, column].any():
            continue
        k_j, v_j = memory.load(k[column]), memory.load(v[column])
        for row in tiles(n, rows):
            if mask is not None and not mask[row, column].any():
                continue
            q_i = memory.load(q[row])
            before = Partial(memory.load(out.m[row]), memory.load(out.l[row]), memory.load(out.o[row]))
            scores = q_i @ k_j.T * scale
            if mask is not None:
                scores = scores.masked_fill(~mask[row, column], -math.inf)
            after = merged(before, partial(scores, v_j))
            memory.store(out.m[row], after.m)
            memory.store(out.l[row], after.l)
            memory.store(out.o[row], after.o)
    return out


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    result: Forward,
    d_out: Tensor,
    memory: Memory,
    rows: int,
    columns: int,
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs algorithm 4: gradients of q, k, v for the output's gradient ``d_out`` [n, d]; probabilities are
    recomputed."""
    d = q.shape[1]
    scale = 1 / math.sqrt(d)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for column in tiles(len(k), columns):
        if mask is not None and not mask[:, column].any():
            continue
        k_j, v_j = memory.load(k[column]), memory.load(v[column])
        dk_j, dv_j = torch.zeros_like(k_j), torch.zeros_like(v_j)
        for row in tiles(len(q), rows):
            if mask is not None and not mask[row, column].any():
                continue
            q_i, o_i, do_i = memory.load(q[row]), memory.load(result.o[row]), memory.load(d_out[row])
            dq_i, l_i, m_i = memory.load(dq[row]), memory.load(result.l[row]), memory.load(result.m[row])
            scores = q_i @ k_j.T * scale
            if mask is not None:
                scores = scores.masked_fill(~mask[row, column], -math.inf)
            p = torch.exp(scores - finite(m_i)[:, None]) / positive(l_i)[:, None]
            dv_j += p.T @ do_i
            dp = do_i @ v_j.T
            ds = p * (dp - (do_i * o_i).sum(dim=1, keepdim=True))
            memory.store(dq[row], dq_i + ds @ k_j * scale)
            dk_j += ds.T @ q_i * scale
        memory.store(dk[column], dk_j)
        memory.store(dv[column], dv_j)
    return dq, dk, dv


def forward_accesses(n: int, d: int, columns: int) -> int:
    """Counts by theorem 2, with constants: K and V once; per key tile Q and O read, O written, and m, l both ways."""
    return 2 * n * d + math.ceil(n / columns) * (3 * n * d + 4 * n)


def backward_accesses(n: int, d: int, columns: int) -> int:
    """Counts K, V read and dK, dV written once; per key tile Q, O, dO, dQ, m, l read and dQ written."""
    return 4 * n * d + math.ceil(n / columns) * (5 * n * d + 2 * n)
