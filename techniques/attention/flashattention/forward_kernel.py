"""Implements FlashAttention's forward pass as a Triton kernel; ``tiled.py`` beside this is its arithmetic in torch's
operators.

A program has a tile of queries, and goes through the tiles of keys that these see. Dao, FlashAttention-2 (2023, arXiv
2307.08691), section 3: the accumulator is divided once, at the end; of the softmax only the logarithm L of each row's
sum is kept, to base 2, in which it is made: another unit would cost digits where scores are large; a causal program
ends at the diagonal, and only the tiles on it are masked.

Two paths, one arithmetic. The plain one reads by pointers, at any address. The Hopper one (``TMA``) reads tiles of keys
and values through tensor descriptors, which the copy engine serves. Programs are many and short-lived: where two are on
one multiprocessor, one multiplies while the other takes its softmax, which on an H200 was faster than one program for
each multiprocessor that takes tile after tile. (Triton 3.6's own specialisation of warps, one loading for the others,
gave wrong sums there.)

Products are exact in the operands' type, and summed in float32; probabilities are rounded to it before they are
multiplied. Rows that see no key give 0.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.portable import dot, narrow
from techniques.attention.flashattention import tiled

ROUNDS = tl.constexpr(7)  # of Philox, enough to pass every test of randomness (Salmon et al., 2011, table 2)
LOG2E = tl.constexpr(1.4426950408889634)
FLOOR = tl.constexpr(tiled.FLOOR)
OF_FLOOR = tl.constexpr(tiled.OF_FLOOR)
HIDDEN = tl.constexpr(float("-inf"))


class Strides(NamedTuple):
    """Holds the strides, in elements, of a tensor [batch, head, row, width], whose last is 1."""

    batch: int
    head: int
    row: int


class MaskStrides(NamedTuple):
    """Holds the strides, in elements, of a mask [batch, head, query, key]; all 0 where there is none."""

    batch: int = 0
    head: int = 0
    row: int = 0
    column: int = 0


class Sizes(NamedTuple):
    """Counts sequences, heads of queries, how many of these share one of keys, and the rows of the longest sequence."""

    batches: int
    heads: int
    groups: int
    queries: int
    keys: int


class Spans(NamedTuple):
    """Says where each sequence begins and how long it is, int32 [batches]; None where each has its own row of a batch,
    or is as long as the longest."""

    q_starts: Tensor | None = None
    q_lengths: Tensor | None = None
    k_starts: Tensor | None = None
    k_lengths: Tensor | None = None


class Dropout(NamedTuple):
    """Holds dropout's seed, int64 [1] (None: no dropout), 1 minus its probability, and that probability times 2^31."""

    seed: Tensor | None
    keep_p: float
    threshold: int


@triton.jit
def first_row(pointer, at, batch, head, row):
    """Returns where ``row`` of a head begins, of a tensor with strides ``at``."""
    return pointer + batch * at.batch + head * at.head + row * at.row


@triton.jit
def extent_of(starts, lengths, batch, length):
    """Returns where the rows of a sequence begin, and how many they are."""
    first = batch * 0
    if starts is not None:
        first = tl.load(starts + batch).to(tl.int64)
    if lengths is not None:
        length = tl.load(lengths + batch)
    return first, length


@triton.jit
def source_of(base, length, of_row, TALL: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, TMA: tl.constexpr):
    """Returns where :func:`load_tile` reads rows of [length, D] from: a descriptor of tiles [TALL, DIM], or the
    pointer."""
    if TMA:
        return tl.make_tensor_descriptor(
            base, shape=[tl.maximum(length, 1), D], strides=[of_row, 1], block_shape=[TALL, DIM]
        )
    else:
        return base


@triton.jit
def load_tile(
    source,
    first,
    length,
    of_row,
    TALL: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    BOUNDED: tl.constexpr,
    TMA: tl.constexpr,
):
    """Loads rows ``first`` to ``first`` + TALL [TALL, DIM], 0 beyond ``length``, if ``BOUNDED``, and beyond D
    components."""
    if TMA:
        return source.load([first, 0])
    else:
        row, component = first + tl.arange(0, TALL), tl.arange(0, DIM)
        place = source + row[:, None].to(tl.int64) * of_row + component[None, :]
        if BOUNDED:
            return tl.load(place, mask=(row < length)[:, None] & (component < D)[None, :], other=0.0)
        elif D != DIM:
            return tl.load(place, mask=(component < D)[None, :], other=0.0)
        else:
            return tl.load(place)


@triton.jit
def seen_products(
    products,
    row,
    column,
    queries,
    keys,
    mask,
    mask_at,
    unscale,
    CAUSAL: tl.constexpr,
    KEYS: tl.constexpr,
    ADDED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Returns ``products``, -inf where a query does not see a key. ``row`` and ``column`` broadcast against them,
    whichever way they lie. ``WHOLE`` tiles have no key beyond the last, nor any in the future; of a mask of ``KEYS``
    each row is the same; one that is ``ADDED`` to scores is added to products by ``unscale``, 1 over the scores' scale,
    down to FLOOR: what a type's lowest number makes of them is finite, as in ``tiled.py``."""
    if not WHOLE:
        if CAUSAL:
            visible = column <= tl.minimum(row, keys - 1)
        else:
            visible = column < keys
        products = tl.where(visible, products, HIDDEN)
    if mask is not None:
        place, inside = mask + column.to(tl.int64) * mask_at.column, column < keys
        if not KEYS:
            place, inside = place + row.to(tl.int64) * mask_at.row, inside & (row < queries)
        if ADDED:
            entries = tl.load(place, mask=inside, other=float("-inf"))
            wide = entries.to(tl.float32)
            products += tl.where((wide > HIDDEN) & (wide * unscale < FLOOR), FLOOR, wide * unscale)
            products = tl.where((products > HIDDEN) & (products < FLOOR), FLOOR, products)
        else:
            entries = tl.load(place, mask=inside, other=0)
            products = tl.where(entries != 0, products, HIDDEN)
    return products


@triton.jit
def kept_weights(seed, plane, row, column, threshold):
    """Tells which weights dropout keeps. Philox counts rows, columns and planes (a head of a sequence), so that tiles
    of any size, and all three kernels, see the same."""
    high, low = (plane >> 32).to(tl.uint32), (plane & 0xFFFFFFFF).to(tl.uint32)
    zeros = (row * 0 + column * 0).to(tl.uint32)
    drawn, _, _, _ = tl.philox(
        seed, zeros + column.to(tl.uint32), zeros + row.to(tl.uint32), zeros + low, zeros + high, ROUNDS
    )
    return (drawn >> 1).to(tl.int32) >= threshold


@triton.jit
def _attended(
    sums,
    total,
    peak,
    query,
    k,
    v,
    begin,
    end,
    row,
    queries,
    keys,
    k_row,
    v_row,
    mask,
    mask_at,
    scale,
    unscale,
    seed,
    plane,
    threshold,
    CAUSAL: tl.constexpr,
    KEYS: tl.constexpr,
    ADDED: tl.constexpr,
    DROPPED: tl.constexpr,
    WHOLE: tl.constexpr,
    COLUMNS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip - a line for each tensor
    """Computes the online softmax over keys ``begin`` to ``end``: unnormalised output ``sums`` [ROWS, DIM], row sums
    ``total`` and maxima ``peak`` [ROWS], in powers of two."""
    for first in tl.range(begin, end, COLUMNS):
        key = load_tile(k, first, keys, k_row, COLUMNS, D, DIM, not WHOLE, TMA)
        products = dot(query, tl.trans(key), tl.zeros((query.shape[0], COLUMNS), tl.float32), PRECISION)
        column = (first + tl.arange(0, COLUMNS))[None, :]
        products = seen_products(
            products,
            row[:, None],
            column,
            queries,
            keys,
            mask,
            mask_at,
            unscale,
            CAUSAL,
            KEYS,
            ADDED,
            WHOLE,
        )
        now = tl.maximum(peak, tl.max(products, 1) * scale)
        taken = now
        if mask is not None:  # otherwise every row sees its first key
            taken = tl.where(now == HIDDEN, 0.0, now)
        p = tl.exp2(products * scale - taken[:, None])
        decay = tl.exp2(peak - taken)
        total = total * decay + tl.sum(p, 1)
        sums = sums * decay[:, None]
        if DROPPED:
            p = tl.where(kept_weights(seed, plane, row[:, None], column, threshold), p, 0.0)
        value = load_tile(v, first, keys, v_row, COLUMNS, D, DIM, not WHOLE, TMA)
        sums = dot(narrow(p, value.dtype), value, sums, PRECISION)
        peak = now
    return sums, total, peak


@triton.jit
def ends_of(first, queries, keys, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr):
    """Returns, of the keys that queries from ``first`` on see: where whole tiles end, and where all end. 0 where a
    sequence is shorter than the longest, and has no such queries."""
    end = tl.where(first < queries, keys, 0)
    if CAUSAL:
        return tl.minimum(end, first + 1) // COLUMNS * COLUMNS, tl.minimum(end, first + ROWS)
    else:
        return end // COLUMNS * COLUMNS, end


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    o,
    logarithms,
    mask,
    spans,
    dropout,
    q_at,
    k_at,
    v_at,
    o_at,
    l_at,
    mask_at,
    sizes,
    scale,
    CAUSAL: tl.constexpr,
    KEYS: tl.constexpr,
    ADDED: tl.constexpr,
    DROPPED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip - a line for each tensor
    """Computes the forward pass of a tile; ``*_at``: a tensor's :class:`Strides`."""
    heads = sizes.heads
    plane, number = tl.program_id(0) % (sizes.batches * heads), tl.program_id(0) // (sizes.batches * heads)
    if CAUSAL:
        number = tl.cdiv(sizes.queries, ROWS) - 1 - number  # the longest first
    batch, head, first = (plane // heads).to(tl.int64), (plane % heads).to(tl.int64), number * ROWS
    shared = head // sizes.groups
    q_first, queries = extent_of(spans.q_starts, spans.q_lengths, batch, sizes.queries)
    k_first, keys = extent_of(spans.k_starts, spans.k_lengths, batch, sizes.keys)
    k = source_of(first_row(k, k_at, batch, shared, k_first), keys, k_at.row, COLUMNS, D, DIM, TMA)
    v = source_of(first_row(v, v_at, batch, shared, k_first), keys, v_at.row, COLUMNS, D, DIM, TMA)
    if mask is not None:
        mask += batch * mask_at.batch + head * mask_at.head
    seed = dropout.seed
    if DROPPED:
        seed = tl.load(seed)
    row = first + tl.arange(0, ROWS)
    query = load_tile(first_row(q, q_at, batch, head, q_first), first, queries, q_at.row, ROWS, D, DIM, True, False)
    sums, total = tl.zeros((ROWS, DIM), tl.float32), tl.zeros((ROWS,), tl.float32)
    peak = tl.full((ROWS,), HIDDEN, tl.float32)
    whole, end = ends_of(first, queries, keys, ROWS, COLUMNS, CAUSAL)
    in_two, unscale = scale * LOG2E, 1.0 / scale
    for part in tl.static_range(2):
        if part == 0:
            begin, stop = 0, whole
        else:
            begin, stop = whole, end
        sums, total, peak = _attended(
            sums,
            total,
            peak,
            query,
            k,
            v,
            begin,
            stop,
            row,
            queries,
            keys,
            k_at.row,
            v_at.row,
            mask,
            mask_at,
            in_two,
            unscale,
            seed,
            plane.to(tl.int64),
            dropout.threshold,
            CAUSAL,
            KEYS,
            ADDED,
            DROPPED,
            part == 0,
            COLUMNS,
            D,
            DIM,
            TMA,
            PRECISION,
        )
    seen = total > 0.0
    of_row = tl.where(total == 0.0, 0.0, 1.0 / (total * dropout.keep_p))
    component, inside = tl.arange(0, DIM), row < queries
    there = first_row(o, o_at, batch, head, q_first + row[:, None]) + component[None, :]
    tl.store(there, narrow(sums * of_row[:, None], o.dtype.element_ty), mask=inside[:, None] & (component < D)[None, :])
    logarithm = tl.where(total == 0.0, HIDDEN, peak + tl.log2(tl.where(seen, total, 1.0)))
    if ADDED:
        logarithm = tl.where(peak == FLOOR * in_two, -OF_FLOOR * total, logarithm)
    logarithm = tl.where(total == total, logarithm, total)  # not a number stays
    tl.store(logarithms + batch * l_at.batch + head * l_at.head + q_first + row, logarithm, mask=inside)
