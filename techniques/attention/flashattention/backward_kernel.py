"""Implements FlashAttention's backward pass as Triton kernels: first dQ, by tiles of queries, then dK and dV, by tiles
of keys.

    P  = 2^(S - L)                  recomputed from the logarithm L, to base 2, that the forward pass kept of each row
    D  = rowsum(dO o O)             by the first kernel, for both
    dV = (Z o P)^T dO               Z: what dropout kept, over its probability
    dS = P o (Z o dO V^T - D)
    dQ = scale dS K                 dK = scale dS^T Q

No sum is of several programs, so that gradients are the same in every run: the price is that S and dO V^T are computed
twice, 7 products where atomic additions to dQ would take 5. Heads that share a key are summed by its program.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from suite.kernels.portable import dot, narrow
from techniques.attention.flashattention.forward_kernel import (
    FLOOR,
    HIDDEN,
    LOG2E,
    OF_FLOOR,
    ends_of,
    extent_of,
    first_row,
    kept_weights,
    load_tile,
    seen_products,
    source_of,
)


@triton.jit
def _of_rows(pointer, row, length, ADDED: tl.constexpr):
    """Loads the logarithms of rows, by which nothing is left of a row that is not there, or sees no key; and what is
    taken from the products of a row before."""
    value = tl.load(pointer + row, mask=row < length, other=HIDDEN)
    base = row * 0.0
    if ADDED:
        low = (value <= -OF_FLOOR) & (value > HIDDEN)
        base = tl.where(low, FLOOR, 0.0)
        value = tl.where(low, tl.log2(tl.where(low, value / -OF_FLOOR, 1.0)), value)
    return tl.where(value == HIDDEN, -HIDDEN, value), base


@triton.jit
def _weights(products, base, logarithm, in_two, ADDED: tl.constexpr):
    """Computes P of a tile; of each row ``base`` and ``logarithm``, which broadcast to the products."""
    if ADDED:
        products -= base
    return tl.exp2(products * in_two - logarithm)


@triton.jit
def _queries_gradient(
    sums,
    query,
    d_out,
    logarithm,
    base,
    delta,
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
    in_two,
    unscale,
    keep_p,
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
    """Returns ``sums`` [ROWS, DIM] plus dS K over keys ``begin`` to ``end``."""
    for first in tl.range(begin, end, COLUMNS):
        key = load_tile(k, first, keys, k_row, COLUMNS, D, DIM, not WHOLE, TMA)
        value = load_tile(v, first, keys, v_row, COLUMNS, D, DIM, not WHOLE, TMA)
        nothing = tl.zeros((query.shape[0], COLUMNS), tl.float32)
        column = (first + tl.arange(0, COLUMNS))[None, :]
        products = dot(query, tl.trans(key), nothing, PRECISION)
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
        p = _weights(products, base[:, None], logarithm[:, None], in_two, ADDED)
        dp = dot(d_out, tl.trans(value), nothing, PRECISION)
        if DROPPED:
            dp = tl.where(kept_weights(seed, plane, row[:, None], column, threshold), dp * (1.0 / keep_p), 0.0)
        ds = p * (dp - delta[:, None])
        sums = dot(narrow(ds, key.dtype), key, sums, PRECISION)
    return sums


@triton.jit
def queries_kernel(
    q,
    k,
    v,
    o,
    d_out,
    dq,
    logarithms,
    deltas,
    mask,
    spans,
    dropout,
    q_at,
    k_at,
    v_at,
    o_at,
    d_at,
    dq_at,
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
    """Computes the queries' gradient, with arguments as of :func:`forward_kernel`."""
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
    output = load_tile(first_row(o, o_at, batch, head, q_first), first, queries, o_at.row, ROWS, D, DIM, True, False)
    d_output = load_tile(
        first_row(d_out, d_at, batch, head, q_first), first, queries, d_at.row, ROWS, D, DIM, True, False
    )
    delta = tl.sum(output.to(tl.float32) * d_output.to(tl.float32), 1)
    of_plane = batch * l_at.batch + head * l_at.head + q_first
    tl.store(deltas + of_plane + row, delta, mask=row < queries)
    logarithm, base = _of_rows(logarithms + of_plane, row, queries, ADDED)
    sums = tl.zeros((ROWS, DIM), tl.float32)
    whole, end = ends_of(first, queries, keys, ROWS, COLUMNS, CAUSAL)
    for part in tl.static_range(2):
        if part == 0:
            begin, stop = 0, whole
        else:
            begin, stop = whole, end
        sums = _queries_gradient(
            sums,
            query,
            d_output,
            logarithm,
            base,
            delta,
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
            scale * LOG2E,
            1.0 / scale,
            dropout.keep_p,
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
    component = tl.arange(0, DIM)
    there = first_row(dq, dq_at, batch, head, q_first + row[:, None]) + component[None, :]
    tl.store(there, narrow(sums * scale, dq.dtype.element_ty), mask=(row < queries)[:, None] & (component < D)[None, :])


@triton.jit
def _keys_gradient(
    dk,
    dv,
    key,
    value,
    q,
    d_out,
    logarithms,
    deltas,
    begin,
    end,
    column,
    queries,
    keys,
    q_row,
    d_row,
    mask,
    mask_at,
    in_two,
    unscale,
    keep_p,
    seed,
    plane,
    threshold,
    CAUSAL: tl.constexpr,
    KEYS: tl.constexpr,
    ADDED: tl.constexpr,
    DROPPED: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip - a line for each tensor
    """Returns ``dk`` and ``dv`` [COLUMNS, DIM] plus dS^T Q and (Z o P)^T dO over queries ``begin`` to ``end``. Scores
    lie transposed, [COLUMNS, ROWS], so that P^T is the left factor of a product as it is."""
    for first in tl.range(begin, end, ROWS):
        query = load_tile(q, first, queries, q_row, ROWS, D, DIM, True, TMA)
        d_output = load_tile(d_out, first, queries, d_row, ROWS, D, DIM, True, TMA)
        row = first + tl.arange(0, ROWS)
        logarithm, base = _of_rows(logarithms, row, queries, ADDED)
        delta = tl.load(deltas + row, mask=row < queries, other=0.0)
        nothing = tl.zeros((key.shape[0], ROWS), tl.float32)
        products = dot(key, tl.trans(query), nothing, PRECISION)
        products = seen_products(
            products,
            row[None, :],
            column[:, None],
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
        p = _weights(products, base[None, :], logarithm[None, :], in_two, ADDED)
        dp = dot(value, tl.trans(d_output), nothing, PRECISION)
        dropped = p
        if DROPPED:
            there = kept_weights(seed, plane, row[None, :], column[:, None], threshold)
            dropped, dp = tl.where(there, p * (1.0 / keep_p), 0.0), tl.where(there, dp * (1.0 / keep_p), 0.0)
        dv = dot(narrow(dropped, d_output.dtype), d_output, dv, PRECISION)
        dk = dot(narrow(p * (dp - delta[None, :]), query.dtype), query, dk, PRECISION)
    return dk, dv


@triton.jit
def keys_kernel(
    q,
    k,
    v,
    d_out,
    dk,
    dv,
    logarithms,
    deltas,
    mask,
    spans,
    dropout,
    q_at,
    k_at,
    v_at,
    d_at,
    dk_at,
    dv_at,
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
    """Computes the gradients of keys and values, with arguments as of :func:`forward_kernel`; ``heads`` are the
    queries'."""
    heads, groups = sizes.heads, sizes.groups
    shareds = heads // groups
    plane, number = tl.program_id(0) % (sizes.batches * shareds), tl.program_id(0) // (sizes.batches * shareds)
    batch, shared, first = (plane // shareds).to(tl.int64), (plane % shareds).to(tl.int64), number * COLUMNS
    q_first, queries = extent_of(spans.q_starts, spans.q_lengths, batch, sizes.queries)
    k_first, keys = extent_of(spans.k_starts, spans.k_lengths, batch, sizes.keys)
    seed = dropout.seed
    if DROPPED:
        seed = tl.load(seed)
    column = first + tl.arange(0, COLUMNS)
    component = tl.arange(0, DIM)
    key = load_tile(first_row(k, k_at, batch, shared, k_first), first, keys, k_at.row, COLUMNS, D, DIM, True, False)
    value = load_tile(first_row(v, v_at, batch, shared, k_first), first, keys, v_at.row, COLUMNS, D, DIM, True, False)
    of_keys, of_values = tl.zeros((COLUMNS, DIM), tl.float32), tl.zeros((COLUMNS, DIM), tl.float32)
    begin, diagonal = 0, 0
    if CAUSAL:  # whole tiles see every key of this one
        begin = tl.minimum(first, queries) // ROWS * ROWS
        diagonal = tl.minimum(tl.cdiv(first + COLUMNS - 1, ROWS) * ROWS, tl.cdiv(queries, ROWS) * ROWS)
    if first < keys:
        for member in tl.range(0, groups):
            head = shared * groups + member
            of_q = source_of(first_row(q, q_at, batch, head, q_first), queries, q_at.row, ROWS, D, DIM, TMA)
            of_d = source_of(first_row(d_out, d_at, batch, head, q_first), queries, d_at.row, ROWS, D, DIM, TMA)
            of_mask = mask
            if mask is not None:
                of_mask = mask + batch * mask_at.batch + head * mask_at.head
            of_rows = batch * l_at.batch + head * l_at.head + q_first
            for part in tl.static_range(2):
                if (part == 1) or CAUSAL:
                    if part == 0:
                        start, stop = begin, diagonal
                    else:
                        start, stop = diagonal, queries
                    of_keys, of_values = _keys_gradient(
                        of_keys,
                        of_values,
                        key,
                        value,
                        of_q,
                        of_d,
                        logarithms + of_rows,
                        deltas + of_rows,
                        start,
                        stop,
                        column,
                        queries,
                        keys,
                        q_at.row,
                        d_at.row,
                        of_mask,
                        mask_at,
                        scale * LOG2E,
                        1.0 / scale,
                        dropout.keep_p,
                        seed,
                        batch * heads + head,
                        dropout.threshold,
                        CAUSAL,
                        KEYS,
                        ADDED,
                        DROPPED,
                        part == 1,
                        ROWS,
                        D,
                        DIM,
                        TMA,
                        PRECISION,
                    )
    inside = (column < keys)[:, None] & (component < D)[None, :]
    of_dk = first_row(dk, dk_at, batch, shared, k_first + column[:, None]) + component[None, :]
    of_dv = first_row(dv, dv_at, batch, shared, k_first + column[:, None]) + component[None, :]
    tl.store(of_dk, narrow(of_keys * scale, dk.dtype.element_ty), mask=inside)
    tl.store(of_dv, narrow(of_values, dv.dtype.element_ty), mask=inside)
