"""The tile algorithm against float64 attention, for any tiles and masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.loop.sites import NotAttached
from techniques.attention.flashattention.tiles import Memory, backward, forward
from tests.runs import new_run


def head(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, generator=random, dtype=torch.float64) for _ in range(3))


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by its definition in float64; rows without a key give zeros."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=1).nan_to_num(0.0) @ v


masks = st.sampled_from(["none", "causal", "random", "empty rows", "empty tiles"])


def mask_of(kind: str, n: int, seed: int) -> Tensor | None:
    random = torch.Generator().manual_seed(seed)
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(n, n, dtype=torch.bool).tril()
    mask = torch.rand(n, n, generator=random) < 0.5
    if kind == "empty rows":
        mask[::3] = False
    if kind == "empty tiles":
        mask[:, : n // 2] = False
    return mask


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 25), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), masks, st.randoms())
def test_output_and_gradients_are_exact_attention_for_any_tiles_in_any_order(n, d, rows, columns, kind, shuffler):
    q, k, v = (each.requires_grad_() for each in head(n, d))
    mask = mask_of(kind, n, seed=n)
    d_out = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = exact(q, k, v, mask)
    gradients = torch.autograd.grad(expected, (q, k, v), d_out)

    order = list(range(math.ceil(n / columns)))
    shuffler.shuffle(order)
    with torch.no_grad():
        result = forward(q, k, v, Memory(), rows, columns, mask=mask, order=order)
        found = backward(q, k, v, result, d_out, Memory(), rows, columns, mask=mask)
    torch.testing.assert_close(result.o, expected, rtol=1e-12, atol=1e-12)
    for got, want in zip(found, gradients, strict=True):
        torch.testing.assert_close(got, want.nan_to_num(0.0), rtol=1e-11, atol=1e-12)


def test_block_sparse_accesses_shrink_with_the_share_of_kept_tiles():
    """Proposition 4: a block-diagonal mask of n / c tiles keeps c / n of the row visits."""
    n, d, size = 64, 8, 8
    q, k, v = head(n, d)
    blocks = torch.block_diag(*[torch.ones(size, size)] * (n // size)).bool()
    dense, sparse = Memory(), Memory()
    forward(q, k, v, dense, size, size)
    forward(q, k, v, sparse, size, size, mask=blocks)
    keys_and_values = 2 * n * d
    assert (dense.accesses - keys_and_values) == (n // size) * (sparse.accesses - keys_and_values)


def test_what_takes_the_attention_away_is_seen():
    """The stack's second technique computes another attention: the first says that it did nothing."""
    run = new_run("gpt", "flashattention+sanger", size="pico", recipe="classic")
    with pytest.raises(NotAttached, match="flashattention did nothing"):
        run.train(1)
