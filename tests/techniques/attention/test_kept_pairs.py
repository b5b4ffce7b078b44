"""Attention over kept pairs against its definition in float64, row by row, and what masks are worth."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.attention.shared.kept_pairs import (
    Pairs,
    kept_attention,
    largest_kept,
    pairs_of,
    touched,
    with_empty_rows,
    worth,
)


def heads(n: int, m: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, rows, d, generator=random, dtype=dtype).requires_grad_() for rows in (n, m, m)]


def masked(n: int, m: int, share: float, seed: int = 1) -> Tensor:
    return torch.rand(2, 3, n, m, generator=torch.Generator().manual_seed(seed)) < share


def by_definition(pairs: Pairs, value: Tensor, kept: Tensor) -> Tensor:
    """Row by row, over the keys that it keeps and no others."""
    rows = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, kept.shape[:3])).tolist():
        own = kept[b, h, i].nonzero()[:, 0]
        scores = pairs.key[b, h, own] @ pairs.query[b, h, i] * pairs.scale
        if pairs.bias is not None:
            scores = scores + pairs.bias.expand(kept.shape)[b, h, i, own]
        rows.append(scores.softmax(0) @ value[b, h, own])
    return torch.stack(rows).view(*kept.shape[:3], -1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.booleans())
def test_output_and_gradients_are_those_of_the_kept_keys_alone(n, m, d, share, biased):
    query, key, value = heads(n, m, d)
    bias = torch.linspace(-2, 2, n * m, dtype=torch.float64).view(n, m) if biased else None
    pairs = pairs_of(query, key, bias, False, 0.7)
    kept = masked(n, m, share)
    d_out = torch.linspace(-1, 1, 2 * 3 * n * d, dtype=torch.float64).view(2, 3, n, d)
    output, expected = kept_attention(pairs, value, kept), by_definition(pairs, value, kept)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)
    ours = torch.autograd.grad(output, (query, key, value), d_out)
    theirs = torch.autograd.grad(expected, (query, key, value), d_out, allow_unused=True, materialize_grads=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)


def test_every_kind_of_mask_says_which_pairs_may_attend():
    query, key, _ = heads(4, 4, 3)
    padding = torch.tensor([True, True, True, False])
    assert pairs_of(query, key, padding[None, None, None], False, 1.0).visible.equal(padding[None, None, None])
    assert pairs_of(query, key, None, True, 1.0).visible.equal(torch.ones(4, 4).tril().bool())
    assert pairs_of(query, key, None, False, 1.0).visible.all()
    added = torch.zeros(4, 4).masked_fill(~padding, torch.finfo(torch.float32).min) + 0.5
    pairs = pairs_of(query, key, added, False, 1.0)
    assert pairs.visible.equal(padding.expand(4, 4)) and pairs.bias is added
    assert pairs_of(query, key, torch.full((4, 4), -math.inf), False, 1.0).visible.any().logical_not()


def test_scores_that_exp_cannot_take_and_rows_without_a_key_give_no_nan():
    query, key, value = heads(3, 3, 2, dtype=torch.float32)
    kept = torch.eye(3, dtype=torch.bool).expand(2, 3, 3, 3).clone()
    kept[:, :, 1] = False
    output = kept_attention(pairs_of(query * 1e4, key * 1e4, None, False, 1.0), value, kept)
    torch.testing.assert_close(output[:, :, 0], value[:, :, 0])
    assert not output[:, :, 1].any()
    assert all(each.isfinite().all() for each in torch.autograd.grad(output.sum(), (query, key, value)))


def test_empty_rows_do_as_they_are_told():
    kept, visible = torch.tensor([[False, True], [True, False]]), torch.tensor([[True, False], [True, False]])
    assert with_empty_rows(kept, visible, "nothing").tolist() == [[False, False], [True, False]]
    assert with_empty_rows(kept, visible, "dense").tolist() == [[True, False], [True, False]]


def test_the_largest_are_kept_and_never_a_hidden_one():
    scores = torch.tensor([[3.0, 9.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]])
    visible = torch.tensor([[True, False, True, True], [True, False, False, False]])
    assert largest_kept(scores, visible, 2).tolist() == [[True, False, False, True], [True, False, False, False]]
    assert largest_kept(scores, visible, 9).equal(visible)


def test_a_masks_worth_is_what_it_keeps_of_dense_attention():
    query, key, value = heads(6, 6, 4)
    pairs = pairs_of(query, key, None, True, 0.5)
    visible = pairs.visible.expand(pairs.shape)
    whole = worth(pairs, value, visible)
    assert (whole.density, whole.recall, whole.blocks) == (1.0, 1.0, 1.0)
    assert whole.mass == pytest.approx(1) and whole.error < 1e-12
    best, some = largest_kept(pairs.scores, visible, 2), with_empty_rows(masked(6, 6, 0.4), visible, "nothing")
    assert worth(pairs, value, best).recall == 1.0
    assert worth(pairs, value, best).density == pytest.approx(11 / 21)
    dense = pairs.scores.masked_fill(~visible, -math.inf).softmax(-1)
    seen = worth(pairs, value, some)
    assert seen.mass == pytest.approx((dense * some).sum(-1).mean().item())
    expected, output = dense @ value, by_definition(pairs, value, some)
    assert seen.error == pytest.approx(((output - expected).norm() / expected.norm()).item())
    lost = 2 * (1 - (dense * some).sum(-1)) * value.norm(dim=-1).amax()
    assert bool((((output - expected).norm(dim=-1) <= lost + 1e-12) | ~some.any(-1)).all())
    with pytest.raises(ValueError, match="no query sees a key"):
        worth(pairs_of(query, key, torch.zeros(6, 6, dtype=torch.bool), False, 1.0), value, some & False)


def test_blocks_are_touched_by_any_of_their_pairs():
    kept = torch.zeros(5, 7, dtype=torch.bool)
    kept[4, 6] = True
    assert touched(kept, 4).tolist() == [[False, False], [False, True]]
    assert touched(kept, 64).tolist() == [[True]]
