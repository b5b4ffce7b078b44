"""Computes attention over the kept blocks of pairs and no others, forward and backward, by PyTorch's operators.

    S = scale Q K^T             at the kept blocks of queries and keys; what is hidden inside a block is masked
    O = dropout(softmax(S)) V   over them; a query whose row of blocks is empty gets 0
    dQ, dK, dV                  at the same blocks, from scores that are computed again; of the forward pass O is kept

Rows of blocks that keep equally many are one batch of products: their blocks of keys and values are gathered, side by
side, a few rows at a time, in memory that all groups use one after the other, so that it stays in the cache. The work,
and the memory, follow the kept blocks. How blocks are chosen is not this module's:
:func:`techniques.attention.shared.kept_pairs.touched` gives those that a mask of pairs needs. float16 and bfloat16 are
widened.
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    block: int = BLOCK,
    dropout_p: float = 0.0,
) -> Tensor:
    """Computes the attention of ``query`` [batch, heads, queries, width] over ``key`` and ``value`` [batch, heads,
    keys, width], in the query's dtype.

    ``blocks`` bool [batch, heads, ceil(queries / block), ceil(keys / block)]: which are computed. Inside of these all
    pairs take part, or those of ``mask`` (bool, broadcasts to all pairs); with ``causal`` none after the query's own
    place. Of the weights a share ``dropout_p`` is dropped. Raises ValueError for shapes that do not fit.
    """
    _check(query, key, value, blocks, block)
    mask = None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])
    q, k, v = (operand.float() if operand.dtype.itemsize < 4 else operand for operand in (query, key, value))
    seed = int(torch.randint(2**62, ())) if dropout_p else 0
    output: Tensor = _BlockAttention.apply(q, k, v, blocks, mask, Form(scale, causal, block, dropout_p, seed))
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


class Form(NamedTuple):
    """Says what is computed of the blocks; which weights are dropped follows from ``seed``, in both passes."""

    scale: float
    causal: bool
    block: int
    dropout_p: float
    seed: int


class Group(NamedTuple):
    """Describes some rows of blocks that keep equally many: ``rows`` int64 [g] counts them through batch and heads;
    ``columns`` int64 [g, count] counts blocks of keys likewise; ``hidden`` bool [g, block, count * block], or None
    where nothing inside is."""

    rows: Tensor
    columns: Tensor
    hidden: Tensor | None


class Blocked(NamedTuple):
    """Holds queries, keys and values as rows of blocks [batch * heads * blocks, block, width], filled up with zeros."""

    query: Tensor
    key: Tensor
    value: Tensor


def _in_blocks(x: Tensor, block: int) -> Tensor:
    padded = (F.pad(x, (0, 0, 0, -x.shape[-2] % block)) if x.shape[-2] % block else x).contiguous()
    return padded.view(math.prod(padded.shape[:3]) // block, block, x.shape[-1])


def groups(
    blocks: Tensor, shape: tuple[int, int], block: int, mask: Tensor | None = None, causal: bool = False
) -> Iterator[Group]:
    """Yields the rows of ``blocks`` that keep any, by how many they keep, AT_ONCE scores or one row at a time.
    ``shape`` is (queries, keys)."""
    of_rows, of_keys = blocks.shape[-2:]
    if causal:
        row, column = (torch.arange(n, device=blocks.device) for n in (of_rows, of_keys))
        blocks = blocks & (column <= row[:, None])
    flat = blocks.flatten(0, 2)
    counts = flat.sum(-1)
    inside = None if mask is None else _in_tiles(mask, block)
    for count in counts.unique().tolist():
        if not count:
            continue
        every_row = (counts == count).nonzero()[:, 0]
        every_column = flat[every_row].nonzero()[:, 1].view(-1, count)
        for rows, local in zip(*(x.split(max(1, AT_ONCE // (count * block**2))) for x in (every_row, every_column))):
            hidden = _hidden(rows, local, blocks.shape[-2:], shape, block, inside, causal)
            yield Group(rows, local + rows[:, None] // of_rows * of_keys, hidden)


def _in_tiles(mask: Tensor, block: int) -> Tensor:
    """Returns the mask in tiles, bool [batch * heads * blocks of queries, blocks of keys, block, block]."""
    padded = F.pad(mask, (0, -mask.shape[-1] % block, 0, -mask.shape[-2] % block))
    tiles = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block)).transpose(-3, -2)
    return tiles.flatten(0, 2)


def _hidden(
    rows: Tensor, local: Tensor, of: torch.Size, shape: tuple[int, int], block: int, inside: Tensor | None, causal: bool
) -> Tensor | None:
    """Returns which pairs of a group's blocks take no part: those beyond the last key, after the query, or not kept."""
    hidden = None
    if inside is not None:
        hidden = ~inside[rows[:, None], local].transpose(1, 2).flatten(2)
    if not causal and not shape[1] % block:
        return hidden
    place = torch.arange(block, device=rows.device)
    keys = (local[..., None] * block + place).flatten(1)[:, None]  # [g, 1, count * block]
    beyond = keys >= shape[1]
    if causal:
        beyond = beyond | (keys > (rows % of[0] * block)[:, None, None] + place[:, None])
    return beyond if hidden is None else hidden | beyond


# the two passes -----------------------------------------------------------------------------------------------------


class Room:
    """Holds memory that tensors of many shapes use one after the other: fresh memory for each costs a CPU as much as a
    product."""

    def __init__(self, like: Tensor) -> None:
        self.whole = like.new_empty(0)

    def of(self, *shape: int) -> Tensor:
        """Returns an unfilled tensor, which the next one overwrites."""
        if (size := math.prod(shape)) > self.whole.numel():
            self.whole = self.whole.new_empty(size)
        return self.whole[:size].view(shape)


class Dropout:
    """Draws the dropout of each group's weights, in one order in both passes: what they are multiplied with, None where
    all stay."""

    def __init__(self, form: Form, like: Tensor) -> None:
        self.stays = 1 - form.dropout_p
        self.random = torch.Generator(like.device).manual_seed(form.seed)
        self.room = Room(like)

    def of(self, weights: Tensor) -> Tensor | None:
        """Returns the factors of the weights: 0, or the inverse of the share that stays."""
        if self.stays == 1:
            return None
        drawn = self.room.of(*weights.shape).bernoulli_(self.stays, generator=self.random)
        return drawn.div_(self.stays) if self.stays else drawn


def _side_by_side(x: Tensor, columns: Tensor, room: Room) -> Tensor:
    """Returns the blocks ``columns`` [g, count] of ``x`` as [g, count * block, width]."""
    g, count = columns.shape
    into = room.of(g * count, *x.shape[1:])
    return torch.index_select(x, 0, columns.flatten(), out=into).view(g, count * x.shape[1], x.shape[2])


def _product(x: Tensor, y: Tensor, room: Room) -> Tensor:
    return torch.bmm(x, y, out=room.of(*x.shape[:2], y.shape[2]))


def _weights(query: Tensor, key: Tensor, scale: float, hidden: Tensor | None, rooms: tuple[Room, Room]) -> Tensor:
    """Computes the softmax of each row; 0 where a pair is hidden, and all of a row that has no other."""
    scores = _product(query * scale, key.transpose(1, 2), rooms[0])
    if hidden is not None:
        scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1, out=rooms[1].of(*scores.shape))
    return weights if hidden is None else weights.masked_fill_(hidden, 0.0)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Tensor, mask: Tensor | None, form: Form
    ) -> Tensor:
        own = Blocked(*(_in_blocks(operand, form.block) for operand in (query, key, value)))
        output = own.query.new_zeros(*own.query.shape[:2], value.shape[-1])
        of_keys, of_values, of_scores, of_weights, outputs = (Room(own.query) for _ in range(5))
        dropout = Dropout(form, own.query)
        for group in groups(blocks, (query.shape[-2], key.shape[-2]), form.block, mask, form.causal):
            k, v = (_side_by_side(x, group.columns, to) for x, to in ((own.key, of_keys), (own.value, of_values)))
            weights = _weights(own.query[group.rows], k, form.scale, group.hidden, (of_scores, of_weights))
            if (factors := dropout.of(weights)) is not None:
                weights.mul_(factors)
            output.index_copy_(0, group.rows, _product(weights, v, outputs))
        ctx.save_for_backward(query, key, value, blocks, mask, output)
        ctx.form = form
        return _whole(output, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, blocks, mask, output = ctx.saved_tensors
        form: Form = ctx.form
        own = Blocked(*(_in_blocks(operand, form.block) for operand in (query, key, value)))
        outer = _in_blocks(gradient, form.block)
        means = (outer * output).sum(-1, keepdim=True)
        of = Blocked(*map(torch.zeros_like, own))
        of_keys, of_values, of_scores, of_weights, parts = (Room(own.query) for _ in range(5))
        dropout = Dropout(form, own.query)
        for group in groups(blocks, (query.shape[-2], key.shape[-2]), form.block, mask, form.causal):
            q, d_out, columns = own.query[group.rows], outer[group.rows], group.columns.flatten()
            k, v = (_side_by_side(x, group.columns, to) for x, to in ((own.key, of_keys), (own.value, of_values)))
            weights = _weights(q, k, form.scale, group.hidden, (of_scores, of_weights))
            d_scores = _product(d_out, v.transpose(1, 2), of_scores)
            if (factors := dropout.of(weights)) is not None:
                d_scores.mul_(factors)
            d_scores.sub_(means[group.rows]).mul_(weights)
            of.query.index_copy_(0, group.rows, _product(d_scores, k, parts))
            _add(of.key, columns, _product(d_scores.transpose(1, 2), q, parts))
            weights = weights if factors is None else weights.mul_(factors)
            _add(of.value, columns, _product(weights.transpose(1, 2), d_out, parts))
        of.query.mul_(form.scale)
        of.key.mul_(form.scale)
        return (*map(_whole, of, (query.shape, key.shape, value.shape)), None, None, None)


def _add(x: Tensor, columns: Tensor, parts: Tensor) -> None:
    x.index_add_(0, columns, parts.view(-1, *x.shape[1:]))


def _whole(x: Tensor, shape: torch.Size) -> Tensor:
    """Returns rows of blocks [batch * heads * blocks, block, width] as [batch, heads, tokens, width], without what was
    filled up."""
    tokens = math.prod(x.shape[:2]) // max(1, math.prod(shape[:2]))
    return x.view(*shape[:2], tokens, x.shape[-1])[:, :, : shape[2]]
