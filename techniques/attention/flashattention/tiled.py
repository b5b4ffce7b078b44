"""Implements FlashAttention by tiles in torch's operators, for devices without the kernels: the same online softmax.

Dao et al. 2022 (arXiv 2205.14135), with the order of loops of Dao 2023 (arXiv 2307.08691), section 3.1: over tiles of
queries outside, of keys inside.

    S = scale Q K^T                  of one tile; -inf where a query does not see a key
    m' = max(m, rowmax S)            P = exp(S - m')
    l <- e^(m - m') l + rowsum P     O <- e^(m - m') O + (Z o P) V        Z: what dropout keeps
    at the end                       O <- O / l, over what dropout keeps on average; L = m + log l

Operands are [batch, heads, length, width]; keys and values may have fewer heads, each for as many of the queries'. A
mask broadcasts to [batch, heads, queries, keys], True where a query sees a key, or is added to scores; ``causal`` lets
query i see keys 0 to i. Sums are float32 (of float64, float64), and probabilities are rounded to the values' type, as
in the kernels. Rows that see no key give 0, and L = -inf. A mask's lowest number (``finfo.min``) hides no key: a row
of such scores alone is the mean of its values, and keeps its sum, since no logarithm can be added to FLOOR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ROWS, COLUMNS = 128, 128  # of a tile
FLOOR = -(2.0**120)  # the lowest finite score
OF_FLOOR = 2.0**100  # in place of the logarithm of a row whose scores are all at the floor: times its sum, below 0
ROUNDS = 7  # of Philox, as in the kernels


class Attention(NamedTuple):
    """Says what is attended to, and how.

    Attributes:
        mask: [batch, heads, queries, keys] by strides of 0 where it broadcasts, or None.
        seed: int64 [1] of dropout, or None without.
        plane: number of the first sequence's first head among all that dropout counts.
    """

    mask: Tensor | None
    causal: bool
    scale: float
    dropout_p: float
    seed: Tensor | None
    plane: int = 0


def by_tokens(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Builds an empty tensor, in the shape of ``like`` [batch, heads, length, width], the heads of a token together, as
    layers want."""
    batch, heads, length, width = like.shape
    return like.new_empty(batch, length, heads, width, dtype=dtype).transpose(1, 2)


def forward(
    query: Tensor, key: Tensor, value: Tensor, form: Attention, rows: int = ROWS, columns: int = COLUMNS
) -> tuple[Tensor, Tensor]:
    """Computes O, as the queries, and L [batch, heads, queries] in the type of sums."""
    sums_dtype, shared = wide(query), key.shape[1]
    q, (k, v) = query.unflatten(1, (shared, -1)), (operand.unsqueeze(2) for operand in (key, value))
    output = by_tokens(query, sums_dtype)
    o, logarithms = output.unflatten(1, (shared, -1)), q.new_empty(q.shape[:-1], dtype=sums_dtype)
    for row in _tiles(query.shape[2], rows):
        of_row = q[..., row, :].to(sums_dtype)
        peak = torch.full_like(of_row[..., 0], -math.inf)
        total, sums = torch.zeros_like(peak), torch.zeros_like(of_row)
        for column in _tiles(key.shape[2], columns):
            scores = _scores(of_row, k[..., column, :].to(sums_dtype), row, column, form, shared)
            if scores is None:
                continue
            now = torch.maximum(peak, scores.amax(-1))
            taken = now.masked_fill(now == -math.inf, 0.0)  # exp(-inf + inf) would be no number
            p, decay = torch.exp(scores - taken[..., None]), torch.exp(peak - taken)
            total = total * decay + p.sum(-1)
            if form.seed is not None:
                p = p * dropout_mask(form, p, row, column)
            sums = sums * decay[..., None] + p.to(value.dtype).to(sums_dtype) @ v[..., column, :].to(sums_dtype)
            peak = now
        o[..., row, :] = sums / (total * (1 - form.dropout_p)).masked_fill(total == 0, 1.0)[..., None]
        logarithms[..., row] = torch.where(peak == FLOOR, -OF_FLOOR * total, peak + total.log())
    return output.to(query.dtype), logarithms.flatten(1, 2)


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithms: Tensor,
    d_out: Tensor,
    form: Attention,
    rows: int = ROWS,
    columns: int = COLUMNS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of queries, keys and values for that of the output; probabilities are exp(S - L), computed
    again."""
    sums_dtype, shared = wide(query), key.shape[1]
    q, o, d = (operand.unflatten(1, (shared, -1)) for operand in (query, output, d_out))
    k, v = key.unsqueeze(2), value.unsqueeze(2)
    delta = (o.to(sums_dtype) * d.to(sums_dtype)).sum(-1)
    taken, base = (operand.unflatten(1, (shared, -1)) for operand in _of_rows(logarithms))
    dq, dk, dv = (by_tokens(operand, sums_dtype).zero_() for operand in (query, key, value))
    of_queries = dq.unflatten(1, (shared, -1))
    for column in _tiles(key.shape[2], columns):
        of_key, of_value = k[..., column, :].to(sums_dtype), v[..., column, :].to(sums_dtype)
        for row in _tiles(query.shape[2], rows):
            of_row, d_row = q[..., row, :].to(sums_dtype), d[..., row, :].to(sums_dtype)
            scores = _scores(of_row, of_key, row, column, form, shared)
            if scores is None:
                continue
            if form.mask is not None and form.mask.dtype != torch.bool:
                scores = scores - base[..., row, None]
            p = torch.exp(scores - taken[..., row, None])
            dp, dropped = d_row @ of_value.mT, p
            if form.seed is not None:
                z = dropout_mask(form, p, row, column) / (1 - form.dropout_p)
                dp, dropped = dp * z, p * z
            ds = (p * (dp - delta[..., row, None])).to(query.dtype).to(sums_dtype)
            dv[..., column, :] += (dropped.to(value.dtype).to(sums_dtype).mT @ d_row).sum(2)
            of_queries[..., row, :] += ds @ of_key * form.scale
            dk[..., column, :] += (ds.mT @ of_row).sum(2) * form.scale
    return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype)


def _of_rows(logarithms: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logarithms of rows, by which nothing is left of one that sees no key; what is taken from its scores
    before."""
    low = (logarithms <= -OF_FLOOR) & (logarithms > -math.inf)
    taken = torch.where(low, (logarithms / -OF_FLOOR).log(), logarithms)
    return taken.masked_fill(logarithms == -math.inf, math.inf), low * FLOOR


def wide(tensor: Tensor) -> torch.dtype:
    """Returns the type of sums."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _tiles(length: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def _scores(query: Tensor, key: Tensor, row: slice, column: slice, form: Attention, shared: int) -> Tensor | None:
    """Computes the scores [batch, shared heads, heads for each, rows, columns]; None of a tile in which no query sees a
    key."""
    if form.causal and column.start >= row.stop:
        return None
    visible = bias = None
    if form.mask is not None:
        part = form.mask[..., row, column].unflatten(1, (shared, -1))
        visible, bias = (part, None) if part.dtype == torch.bool else (None, part)
    if form.causal and column.stop > row.start + 1:
        seen = _numbers(column, query.device) <= _numbers(row, query.device)[:, None]
        visible = seen if visible is None else visible & seen
    if visible is not None and not visible.any():
        return None
    scores = query @ key.mT * form.scale
    if bias is not None:
        scores = (scores + bias).clamp(min=FLOOR).masked_fill(bias == -math.inf, -math.inf)
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def _numbers(part: slice, device: torch.device) -> Tensor:
    return torch.arange(part.start, part.stop, device=device)


# dropout ------------------------------------------------------------------------------------------------------------

LOW = 0xFFFFFFFF
A, B, KEY_A, KEY_B = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def threshold(dropout_p: float) -> int:
    """Returns the threshold of 31 random bits: what is smaller is dropped."""
    return round(dropout_p * 2**31)


def dropout_mask(form: Attention, like: Tensor, row: slice, column: slice) -> Tensor:
    """Returns the mask of the weights ``like`` [batch, shared, heads for each, rows, columns], 1 where dropout keeps
    one, else 0.

    Philox 4x32 (Salmon et al., 2011) counts columns, rows and planes, where a plane is a head of a sequence: a weight's
    fate is the same in tiles of any size, in both passes, and in the kernels.
    """
    assert form.seed is not None
    planes = form.plane + torch.arange(like.shape[:3].numel(), device=like.device).view(*like.shape[:3], 1, 1)
    counts = [_numbers(column, like.device), _numbers(row, like.device)[:, None], planes, torch.zeros_like(planes)]
    drawn = philox([count.expand(like.shape) for count in counts], int(form.seed.item()))
    return (drawn >> 1 >= threshold(form.dropout_p)).to(like.dtype)


def philox(counts: list[Tensor], seed: int) -> Tensor:
    """Computes the first of the four words of 32 bits that Philox makes of four int64 tensors of them and a key of 64
    bits."""
    c0, c1, c2, c3 = counts
    k0, k1 = seed & LOW, seed >> 32 & LOW
    for _ in range(ROUNDS):
        (high_a, low_a), (high_b, low_b) = _product(c0, A), _product(c2, B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = k0 + KEY_A & LOW, k1 + KEY_B & LOW
    return c0


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Returns the upper and the lower 32 bits of a product of 64, which has no room in int64: by halves of
    ``factor``."""
    by_high, by_low = x * (factor >> 16), x * (factor & 0xFFFF)
    return by_high + (by_low >> 16) >> 16, by_low + ((by_high & 0xFFFF) << 16) & LOW
