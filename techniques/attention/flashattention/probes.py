"""Tells what a recorded step shows of FlashAttention, beside attention with all its scores, in a pass of the same
batch.

The recorded step's gradients are set against those of a definition written here, softmax(Q K^T / sqrt(d)) V in
float64, causal where the model is. The tiles that compute where there is no GPU (``tiled.py``), and algorithms 1 and 4
in ``tiles.py``, get queries, keys and values of that pass; the latter's accesses are set against theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.attention.flashattention import tiled
from techniques.attention.flashattention.technique import FlashAttention
from techniques.attention.flashattention.tiles import Memory, backward, forward
from techniques.shared.plain import apart

ROWS, COLUMNS = 3, 5  # of tiles, so that the last ones are ragged
RANGE = math.log(torch.finfo(torch.float64).max)  # the exponential of more overflows


OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none


@judged(
    "own_share",
    "Every attention of a pass is computed by this entry's own operator, also where the recipe has a fused one",
    "Section 3.1",
    id="own_attention",
    equals=1.0,
)
@judged(
    "gradient_roundings",
    "Exact attention: a step's gradients are those of softmax(Q K^T / sqrt(d)) V, causal where the model is",
    "Section 3.1; theorem 1",
    id="exact",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
    note="no attention dropout",
)
@judged(
    "tile_output",
    "The tiles give the output of attention: those that compute the model's, and algorithm 1",
    "Theorem 1",
    id="exact_by_tiles",
    at_most=1e-13,  # of the largest, in float64: some hundred roundings
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "tile_gradients",
    "They give the gradients of attention; so does algorithm 4",
    "Section 3.1; appendix B",
    id="exact_gradients_by_tiles",
    at_most=1e-13,  # of the largest, in float64: some hundred roundings
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "overflows",
    "Scores beyond the range of the exponential overflow nothing: each row's maximum is subtracted, in both passes",
    "Section 3.1: the softmax of a block is decomposed with its maximum, for numerical stability",
    id="no_overflow",
    scope="kernel",
    recipes=["classic"],
    note="queries so large that scores reach twice the range, in float64",
)
def probes(recording: Recording, own: FlashAttention) -> Mapping[str, float]:
    """Claims read ``forward_accesses`` and ``backward_accesses`` to slow memory, over theorem 2's count, and
    ``saved_scores``, the tensors as large as the scores that a pass keeps for its backward pass. Tiles are held against
    the definition in float64, relative to its largest number."""
    run, trace = recording.run, recording.trace
    seen: list[tuple[Tensor, Tensor, Tensor, bool]] = []

    def definition(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        visible = None if mask is None and not causal else _visible(query, key, mask)
        output = _definition(query.double(), key.double(), value.double(), visible)
        seen.append((query.detach(), key.detach(), value.detach(), visible is not None and not bool(visible.all())))
        return output.to(query.dtype)

    with run.anatomy.attention(definition):
        expected = recording.gradients_at(trace.before.parameters)
    query, key, value, causal = seen[0]
    with _saved() as saved, _Own() as own_ones:
        recording.gradients_at(trace.before.parameters)
    scores = {(*tensor.shape[:2], tensor.shape[2], other.shape[2]) for tensor, other, _, _ in seen}
    return {
        "own_share": own_ones.count / len(seen),
        "gradient_roundings": apart(
            trace.of("backward")[0].gradients, {name: gradient.double() for name, gradient in expected.items()}
        ),
        "saved_scores": sum(tuple(tensor.shape) in scores and _of_pairs(tensor, query.shape[-1]) for tensor in saved),
        **_of_tiles(query[0, 0].double(), key[0, 0].double(), value[0, 0].double(), causal),
    }


def _visible(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    return mask if mask.dtype == torch.bool else mask == 0


def _definition(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return torch.softmax(scores, -1) @ v


def _of_tiles(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> dict[str, float]:
    (n, d), key_tiles = q.shape, math.ceil(len(k) / COLUMNS)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    with torch.enable_grad():
        leaves = [operand.clone().requires_grad_() for operand in (q, k, v)]
        output = _definition(leaves[0], leaves[1], leaves[2], mask)
        d_out = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
        expected = torch.autograd.grad(output, leaves, d_out)
    beyond = q * (2 * RANGE / (q @ k.T / math.sqrt(d)).abs().max())
    of_tiles = [_counted(q, k, v, d_out, mask), _computed(q, k, v, d_out, causal)]
    of_large = [*_counted(beyond, k, v, d_out, mask), *_computed(beyond, k, v, d_out, causal)]
    there, back = Memory(), Memory()
    whole = forward(q, k, v, there, ROWS, COLUMNS)
    backward(q, k, v, whole, d_out, back, ROWS, COLUMNS)
    return {
        "tile_output": max(_off(o, output.detach()) for o, *_ in of_tiles),
        "tile_gradients": max(
            _off(ours, theirs) for _, *own in of_tiles for ours, theirs in zip(own, expected, strict=True)
        ),
        "overflows": sum(int((~tensor.isfinite()).sum()) for tensor in of_large),
        "forward_accesses": there.accesses / (2 * n * d + key_tiles * (3 * n * d + 4 * n)),
        "backward_accesses": back.accesses / (4 * n * d + key_tiles * (5 * n * d + 2 * n)),
    }


def _counted(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Computes output and gradients by the first paper's algorithms."""
    result = forward(q, k, v, Memory(), ROWS, COLUMNS, mask=mask)
    return [result.o, *backward(q, k, v, result, d_out, Memory(), ROWS, COLUMNS, mask=mask)]


def _computed(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, causal: bool) -> list[Tensor]:
    """Computes output and gradients by the tiles that the model's attention is computed by."""
    form = tiled.Attention(None, causal, 1 / math.sqrt(q.shape[1]), 0.0, None)
    query, key, value, d_output = (operand[None, None] for operand in (q, k, v, d_out))
    o, logarithms = tiled.forward(query, key, value, form, ROWS, COLUMNS)
    gradients = tiled.backward(query, key, value, o, logarithms, d_output, form, ROWS, COLUMNS)
    return [gradient[0, 0] for gradient in (o, *gradients)]


class _Own(TorchDispatchMode):
    """Counts this entry's operator meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.leantrain.flash_attention.default
        return func(*args, **(kwargs or {}))


def _off(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).abs().max() / expected.abs().max()).item()


def _of_pairs(tensor: Tensor, width: int) -> bool:
    """Tells whether a tensor of the scores' shape has a number for each pair of tokens. Where a head is as wide as
    there are tokens, queries have that shape, too: rows of probabilities tell."""
    rows = tensor.detach().sum(-1)
    return tensor.shape[-1] != width or bool((tensor >= 0).all() and torch.allclose(rows, torch.ones_like(rows)))


@contextmanager
def _saved() -> Iterator[list[Tensor]]:
    """Collects what is kept for the backward pass meanwhile."""
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield tensors
