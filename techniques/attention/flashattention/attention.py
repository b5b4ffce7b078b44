"""Offers FlashAttention as an operator of torch: the kernels on a GPU, the tiles of :mod:`tiled` elsewhere.

:func:`flash_attention` takes whole sequences, which may be filled up at their ends or masked, :func:`packed_attention`
sequences of uneven lengths one after the other. Both are one operator each way, so that counters, graphs and tensors
without values see them; FLOPs are declared as of every fused attention: two products forth, five back, of all pairs.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from techniques.attention.flashattention import tiled
from techniques.attention.flashattention.tiled import Attention, by_tokens


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    key_lengths: Tensor | None = None,
) -> Tensor:
    """Computes softmax(scale Q K^T + mask) V for queries [batch, heads, queries, width], keys and values [batch, shared
    heads, keys, width], where heads are a multiple of the shared ones; in the queries' type.

    ``mask`` broadcasts to [batch, heads, queries, keys]: bool, True where a query sees a key, or added to the scores.
    ``causal`` lets query i see keys 0 to i. ``scale`` is 1 / sqrt(width) where it is None. ``key_lengths``, int32
    [batch], says how many keys of each sequence are there. A query that sees no key gets 0.

    Raises ValueError for shapes that do not fit together, for a mask that learns, and on a GPU for types and widths
    that the kernels do not take.
    """
    _check(query, key, value, dropout_p)
    batch, heads, queries, width = query.shape
    if mask is not None:
        if mask.requires_grad:
            raise ValueError(
                "a mask that learns, as a position bias does, gets no gradient from these kernels: leave attention as "
                "it is, or detach the mask"
            )
        whole = (batch, heads, queries, key.shape[2])
        mask = mask[(None,) * (4 - mask.dim())]  # which waits for the backward pass as small as it is
        if mask.dim() != 4 or any(own not in (1, size) for own, size in zip(mask.shape, whole, strict=True)):
            raise ValueError(
                f"a mask of shape {list(mask.shape)} does not broadcast to {list(whole)}: give it such a shape"
            )
    if key_lengths is not None and key_lengths.shape != (batch,):
        raise ValueError(f"key_lengths has a number for each of {batch} sequences, not shape {list(key_lengths.shape)}")
    scale = 1 / math.sqrt(max(1, width)) if scale is None else scale
    output, _ = _forward(
        query, key, value, mask, _seed(query, dropout_p), None, None, key_lengths, 0, 0, causal, scale, dropout_p
    )
    return output


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Computes :func:`flash_attention` of sequences one after the other: queries [rows, heads, width], keys and values
    [rows, shared heads, width]. ``q_starts`` and ``k_starts``, int32 [sequences + 1], say where each begins, with the
    number of rows at the end; the two numbers are the most rows of one. Returns [rows, heads, width].

    Raises ValueError as :func:`flash_attention`, and where starts are not of as many sequences.
    """
    q, k, v = (operand.transpose(0, 1).unsqueeze(0) for operand in (query, key, value))
    _check(q, k, v, dropout_p)
    if q_starts.dim() != 1 or q_starts.shape != k_starts.shape or len(q_starts) < 1:
        raise ValueError(
            f"starts are of as many sequences for queries as for keys, and one more, not {list(q_starts.shape)} and "
            f"{list(k_starts.shape)}"
        )
    if {q_starts.dtype, k_starts.dtype} != {torch.int32}:
        raise ValueError(f"starts are int32, not {q_starts.dtype} and {k_starts.dtype}: cast them")
    scale = 1 / math.sqrt(max(1, query.shape[-1])) if scale is None else scale
    seed = _seed(q, dropout_p)
    output, _ = _forward(
        q, k, v, None, seed, q_starts, k_starts, None, longest_query, longest_key, causal, scale, dropout_p
    )
    return output.squeeze(0).transpose(0, 1)


def _check(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> None:
    if any(operand.dim() != 4 for operand in (query, key, value)):
        shapes = [list(operand.shape) for operand in (query, key, value)]
        raise ValueError(f"queries, keys and values are [batch, heads, length, width], not {shapes}")
    if (
        key.shape != value.shape
        or query.shape[0] != key.shape[0]
        or query.shape[3] != key.shape[3]
        or not key.shape[1]
        or query.shape[1] % key.shape[1]
    ):
        raise ValueError(
            f"queries {list(query.shape)} do not fit to keys {list(key.shape)} and values {list(value.shape)}: give "
            "keys and values of one shape, of the queries' batch and width, and of heads that divide theirs"
        )
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout is a probability in [0, 1), not {dropout_p:g}")


def _seed(query: Tensor, dropout_p: float) -> Tensor | None:
    """Draws a seed from the generator of the device, as other dropout does: what is computed again draws the same."""
    return torch.randint(2**62, (1,), device=query.device) if dropout_p else None


# the operator -------------------------------------------------------------------------------------------------------


@torch.library.custom_op("leantrain::flash_attention", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    key_lengths: Tensor | None,
    longest_query: int,
    longest_key: int,
    causal: bool,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Returns the output, as the queries, and the logarithms of the rows' sums [batch, heads, queries]."""
    form = Attention(_expanded(mask, query, key), causal, scale, dropout_p, seed)
    if query.is_cuda:
        from techniques.attention.flashattention import kernel  # loads Triton

        packed = _packed(kernel, q_starts, k_starts, longest_query, longest_key)
        return kernel.forward(query, key, value, form, packed, key_lengths)
    with torch.autocast(query.device.type, enabled=False):
        if q_starts is None or k_starts is None:
            return tiled.forward(query, key, value, _with_lengths(form, query, key, key_lengths))
        output, logarithms = by_tokens(query).zero_(), query.new_zeros(query.shape[:-1], dtype=tiled.wide(query))
        for number, (rows, columns) in enumerate(_sequences(q_starts, k_starts)):
            parts = query[:, :, rows], key[:, :, columns], value[:, :, columns]
            output[:, :, rows], logarithms[:, :, rows] = tiled.forward(
                *parts, form._replace(plane=number * query.shape[1])
            )
        return output, logarithms


@torch.library.custom_op("leantrain::flash_attention_backward", mutates_args=())
def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithms: Tensor,
    d_out: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    key_lengths: Tensor | None,
    longest_query: int,
    longest_key: int,
    causal: bool,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    form = Attention(_expanded(mask, query, key), causal, scale, dropout_p, seed)
    saved = output, logarithms, d_out
    if query.is_cuda:
        from techniques.attention.flashattention import kernel

        packed = _packed(kernel, q_starts, k_starts, longest_query, longest_key)
        return kernel.backward(query, key, value, *saved, form, packed, key_lengths)
    with torch.autocast(query.device.type, enabled=False):
        if q_starts is None or k_starts is None:
            return tiled.backward(query, key, value, *saved, _with_lengths(form, query, key, key_lengths))
        gradients = by_tokens(query).zero_(), by_tokens(key).zero_(), by_tokens(value).zero_()
        for number, (rows, columns) in enumerate(_sequences(q_starts, k_starts)):
            parts = query[:, :, rows], key[:, :, columns], value[:, :, columns]
            of_rows = output[:, :, rows], logarithms[:, :, rows], d_out[:, :, rows]
            results = tiled.backward(*parts, *of_rows, form._replace(plane=number * query.shape[1]))
            for gradient, part, place in zip(gradients, results, (rows, columns, columns), strict=True):
                gradient[:, :, place] = part
        return gradients


@_forward.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return by_tokens(query), query.new_empty(query.shape[:-1], dtype=tiled.wide(query))


@_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return by_tokens(query), by_tokens(key), by_tokens(value)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.settings = inputs[:8], inputs[8:]
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, d_out: Tensor, d_logarithms: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, seed, q_starts, k_starts, key_lengths, output, logarithms = ctx.saved_tensors
    gradients = _backward(
        query, key, value, output, logarithms, d_out, mask, seed, q_starts, k_starts, key_lengths, *ctx.settings
    )
    return (*gradients, *[None] * 10)


_forward.register_autograd(_differentiate, setup_context=_setup)


def _expanded(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    return None if mask is None else mask.expand(*query.shape[:3], key.shape[2])


def _packed(kernel: Any, q_starts: Tensor | None, k_starts: Tensor | None, *longest: int) -> Any:
    return None if q_starts is None else kernel.Packed(q_starts, k_starts, *longest)


def _sequences(q_starts: Tensor, k_starts: Tensor) -> list[tuple[slice, slice]]:
    bounds = zip(q_starts.tolist(), k_starts.tolist(), strict=True)
    return [(slice(a, c), slice(b, d)) for (a, b), (c, d) in pairwise(bounds)]


def _with_lengths(form: Attention, query: Tensor, key: Tensor, lengths: Tensor | None) -> Attention:
    """Adds the mask that the lengths say."""
    if lengths is None:
        return form
    there = (torch.arange(key.shape[2], device=key.device) < lengths[:, None])[:, None, None]
    if form.mask is None:
        mask = there
    elif form.mask.dtype == torch.bool:
        mask = form.mask & there
    else:
        mask = form.mask.masked_fill(~there, -math.inf)
    return form._replace(mask=_expanded(mask, query, key))


def _pairs(query: Tensor, key: Tensor, q_starts: Tensor | None, k_starts: Tensor | None) -> int:
    """Counts the pairs of a query and a key, over all heads. Starts that have no values count as one sequence of
    everything."""
    batch, heads, queries, _ = query.shape
    if q_starts is None or k_starts is None or _has_no_values(q_starts):
        return batch * heads * queries * key.shape[2]
    return heads * int((q_starts.diff().long() * k_starts.diff().long()).sum())


def _has_no_values(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor)


@register_flop_formula(torch.ops.leantrain.flash_attention, get_raw=True)
def _forward_flops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    seed: Any,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    *_: Any,
    **__: Any,
) -> int:
    return 4 * _pairs(query, key, q_starts, k_starts) * query.shape[-1]


@register_flop_formula(torch.ops.leantrain.flash_attention_backward, get_raw=True)
def _backward_flops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithms: Tensor,
    d_out: Tensor,
    mask: Any,
    seed: Any,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    *_: Any,
    **__: Any,
) -> int:
    return 10 * _pairs(query, key, q_starts, k_starts) * query.shape[-1]
