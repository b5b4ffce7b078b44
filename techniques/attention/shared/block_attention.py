"""Attention that computes the kept blocks of pairs and no others, forward and backward, by PyTorch's operators.

    S = scale Q K^T    at the kept blocks of queries and keys; what is hidden inside a block is masked
    O = softmax(S) V   over them; a query whose row of blocks is empty gets 0
    dQ, dK, dV         at the same blocks, from scores that are computed again; kept are O and the rows' log-sums

Rows of blocks that keep equally many are one batch of products: their blocks of keys and values are gathered, side by
side, a few rows at a time, so that scores stay in the cache. The work, and the memory, follow the kept blocks. How
blocks are chosen is not this module's: :func:`techniques.attention.shared.kept_pairs.touched` gives those that a mask
of pairs needs. float16 and bfloat16 are widened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from techniques.attention.shared.kept_pairs import BLOCK

AT_ONCE = 2**17  # scores that are computed together: half a megabyte of them


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, blocks: Tensor, *, scale: float, kept: Tensor | None = None,
    causal: bool = False, block: int = BLOCK,
) -> Tensor:  # fmt: skip
    """``query`` [batch, heads, queries, width] over ``key`` and ``value`` [batch, heads, keys, width], in the query's
    dtype.

    ``blocks`` bool [batch, heads, ceil(queries / block), ceil(keys / block)]: which are computed. Inside of these all
    pairs take part, or those of ``kept`` (bool, broadcasts to all pairs); with ``causal`` none after the query's own
    place. Raises ValueError for shapes that do not fit.
    """
    _check(query, key, value, blocks, block)
    kept = None if kept is None else kept.expand(*query.shape[:-1], key.shape[-2])
    q, k, v = (each.float() if each.dtype.itemsize < 4 else each for each in (query, key, value))
    output: Tensor = _BlockAttention.apply(q, k, v, blocks, scale, kept, causal, block)
    return output.to(query.dtype)


def _check(query: Tensor, key: Tensor, value: Tensor, blocks: Tensor, block: int) -> None:
    if block < 1:
        raise ValueError(f"block is the side of a block, 1 or more, not {block}")
    same = query.ndim == key.ndim == value.ndim == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not same or key.shape[-2] != value.shape[-2] or query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "queries, keys and values are [batch, heads, tokens, width] with the same batch and heads, keys as many as "
            f"values and as wide as queries, not {[*query.shape]}, {[*key.shape]} and {[*value.shape]}"
        )
    wanted = (*query.shape[:2], -(-query.shape[-2] // block), -(-key.shape[-2] // block))
    if blocks.dtype != torch.bool or blocks.shape != wanted:
        raise ValueError(f"blocks are bool {[*wanted]} here, not {blocks.dtype} {[*blocks.shape]}")


class Group(NamedTuple):
    """Some rows of blocks that keep equally many: ``rows`` int64 [g] counts them through batch and heads; ``columns``
    int64 [g, count] counts blocks of keys likewise; ``hidden`` bool [g, block, count * block], or None where nothing
    inside is."""

    rows: Tensor
    columns: Tensor
    hidden: Tensor | None


class Blocked(NamedTuple):
    """Queries, keys and values as rows of blocks [batch * heads * blocks, block, width], filled up with zeros."""

    query: Tensor
    key: Tensor
    value: Tensor

    def gathered(self, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        """The group's queries [g, block, width], and keys and values [g, count * block, width]."""
        return self.query[group.rows], _side_by_side(self.key, group.columns), _side_by_side(self.value, group.columns)


def _side_by_side(x: Tensor, columns: Tensor) -> Tensor:
    g, count = columns.shape
    return x.index_select(0, columns.flatten()).view(g, count * x.shape[1], x.shape[2])


def _in_blocks(x: Tensor, block: int) -> Tensor:
    padded = F.pad(x, (0, 0, 0, -x.shape[-2] % block)) if x.shape[-2] % block else x.contiguous()
    return padded.view(math.prod(padded.shape[:3]) // block, block, x.shape[-1])


def groups(
    blocks: Tensor, shape: tuple[int, int], block: int, kept: Tensor | None = None, causal: bool = False
) -> Iterator[Group]:
    """The rows of ``blocks`` that keep any, by how many they keep, AT_ONCE scores or one row at a time. ``shape`` is
    (queries, keys)."""
    of_rows, of_keys = blocks.shape[-2:]
    if causal:
        row, column = (torch.arange(n, device=blocks.device) for n in (of_rows, of_keys))
        blocks = blocks & (column <= row[:, None])
    flat = blocks.flatten(0, 2)
    counts = flat.sum(-1)
    inside = None if kept is None else _in_tiles(kept, block)
    for count in counts.unique().tolist():
        if not count:
            continue
        every_row = (counts == count).nonzero()[:, 0]
        every_column = flat[every_row].nonzero()[:, 1].view(-1, count)
        for rows, local in zip(*(x.split(max(1, AT_ONCE // (count * block**2))) for x in (every_row, every_column))):
            hidden = _hidden(rows, local, blocks.shape[-2:], shape, block, inside, causal)
            yield Group(rows, local + rows[:, None] // of_rows * of_keys, hidden)


def _in_tiles(kept: Tensor, block: int) -> Tensor:
    """bool [batch * heads * blocks of queries, blocks of keys, block, block]."""
    padded = F.pad(kept, (0, -kept.shape[-1] % block, 0, -kept.shape[-2] % block))
    tiles = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block)).transpose(-3, -2)
    return tiles.flatten(0, 2)


def _hidden(
    rows: Tensor, local: Tensor, of: torch.Size, shape: tuple[int, int], block: int, inside: Tensor | None, causal: bool
) -> Tensor | None:
    """Which pairs of a group's blocks take no part: those beyond the last key, after the query, or not kept."""
    found = None
    place = torch.arange(block, device=rows.device)
    keys = (local[..., None] * block + place).flatten(1)[:, None]  # [g, 1, count * block]
    if shape[1] % block:
        found = keys >= shape[1]
    if causal:
        after = keys > (rows % of[0] * block)[:, None, None] + place[:, None]
        found = after if found is None else found | after
    if inside is not None:
        left = ~inside[rows[:, None], local].transpose(1, 2).flatten(2)
        found = left if found is None else found | left
    return found


def _scores(query: Tensor, key: Tensor, scale: float, hidden: Tensor | None) -> Tensor:
    scores = torch.bmm(query * scale, key.transpose(1, 2))
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Tensor, scale: float, kept: Tensor | None,
        causal: bool, block: int,
    ) -> Tensor:  # fmt: skip
        own = Blocked(*(_in_blocks(each, block) for each in (query, key, value)))
        output = own.query.new_zeros(*own.query.shape[:2], value.shape[-1])
        sums = own.query.new_zeros(*own.query.shape[:2], 1)  # log of each row's sum; 0 of an empty one
        for group in groups(blocks, (query.shape[-2], key.shape[-2]), block, kept, causal):
            q, k, v = own.gathered(group)
            scores = _scores(q, k, scale, group.hidden)
            largest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
            weights = scores.sub_(largest).exp_()
            total = weights.sum(-1, keepdim=True)
            output[group.rows] = torch.bmm(weights, v).div_(total.clamp(min=torch.finfo(scores.dtype).tiny))
            sums[group.rows] = torch.where(total > 0, total.log() + largest, 0.0)
        ctx.save_for_backward(query, key, value, blocks, kept, output, sums)
        ctx.scale, ctx.causal, ctx.block = scale, causal, block
        return _whole(output, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, blocks, kept, output, sums = ctx.saved_tensors
        block, scale = ctx.block, ctx.scale
        own = Blocked(*(_in_blocks(each, block) for each in (query, key, value)))
        outer = _in_blocks(gradient, block)
        means = (outer * output).sum(-1, keepdim=True)
        of = Blocked(*map(torch.zeros_like, own))
        for group in groups(blocks, (query.shape[-2], key.shape[-2]), block, kept, ctx.causal):
            q, k, v = own.gathered(group)
            d_out, columns = outer[group.rows], group.columns.flatten()
            weights = _scores(q, k, scale, group.hidden).sub_(sums[group.rows]).exp_()
            of_value = torch.bmm(weights.transpose(1, 2), d_out)
            of_scores = torch.bmm(d_out, v.transpose(1, 2)).sub_(means[group.rows]).mul_(weights).mul_(scale)
            of.query[group.rows] = torch.bmm(of_scores, k)
            of_key = torch.bmm(of_scores.transpose(1, 2), q)
            for x, part in ((of.key, of_key), (of.value, of_value)):
                x.index_add_(0, columns, part.view(-1, block, x.shape[-1]))
        return (*map(_whole, of, (query.shape, key.shape, value.shape)), *[None] * 5)


def _whole(x: Tensor, shape: torch.Size) -> Tensor:
    """Rows of blocks [batch * heads * blocks, block, width] as [batch, heads, tokens, width], without what was filled
    up."""
    tokens = math.prod(x.shape[:2]) // max(1, math.prod(shape[:2]))
    return x.view(*shape[:2], tokens, x.shape[-1])[:, :, : shape[2]]
