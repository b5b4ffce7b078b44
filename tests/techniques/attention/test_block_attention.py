"""Attention over kept blocks against masked dense attention in float64, forward and backward, and at its edges."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.attention.shared import block_attention as module
from techniques.attention.shared.block_attention import block_attention, groups
from techniques.attention.shared.kept_pairs import kept_attention, pairs_of, touched


def heads(n: int, m: int, d: int, dtype: torch.dtype = torch.float64, of_values: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = ((n, d), (m, d), (m, of_values or d))
    return [torch.randn(2, 3, *shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]


def drawn(rows: int, columns: int, share: float, seed: int = 1) -> Tensor:
    return torch.rand(2, 3, rows, columns, generator=torch.Generator().manual_seed(seed)) < share


def of_pairs(blocks: Tensor, block: int, n: int, m: int) -> Tensor:
    return blocks.repeat_interleave(block, -2).repeat_interleave(block, -1)[..., :n, :m]


def dense(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    scores = (query @ key.transpose(-2, -1) * scale).masked_fill(~mask, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ value


def agree(ours: Tensor, theirs: Tensor, given: list[Tensor], tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    d_out = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view(ours.shape)
    mine, other = (torch.autograd.grad(output, given, d_out, materialize_grads=True) for output in (ours, theirs))
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 19),
    st.integers(1, 19),
    st.integers(1, 5),
    st.sampled_from([1, 3, 4, 32]),
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 40, 10**6]),
)
def test_it_is_dense_attention_over_the_pairs_of_the_kept_blocks(n, m, d, block, share, causal, fine, at_once):
    given = heads(n, m, d)
    blocks = drawn(-(-n // block), -(-m // block), share)
    kept = drawn(n, m, 0.6, 2) if fine else None
    mask = of_pairs(blocks, block, n, m) & (kept if fine else True)
    mask = mask & torch.ones(n, m, dtype=torch.bool).tril() if causal else mask
    before, module.AT_ONCE = module.AT_ONCE, at_once
    try:
        ours = block_attention(*given, blocks, scale=0.7, mask=kept, causal=causal, block=block)
        agree(ours, dense(*given, mask, 0.7), given, 1e-11)
    finally:
        module.AT_ONCE = before


def test_it_is_the_techniques_own_attention_where_a_mask_says_what_is_kept_inside():
    query, key, value = heads(70, 70, 8)
    kept = drawn(70, 70, 0.02)
    pairs = pairs_of(query, key, None, False, 0.3)
    ours = block_attention(query, key, value, touched(kept), scale=0.3, mask=kept)
    agree(ours, kept_attention(pairs, value, kept), [query, key, value], 1e-11)


def test_only_kept_blocks_are_multiplied():
    blocks = drawn(6, 6, 0.4)
    blocks[0, 0, 2] = False
    found = [*groups(blocks, (24, 24), 4)]
    computed = torch.zeros(2 * 3 * 6, 2 * 3 * 6, dtype=torch.int64)
    for group in found:
        assert group.hidden is None
        computed[group.rows[:, None], group.columns] += 1
    expected = torch.block_diag(*blocks.flatten(0, 1).long())
    assert torch.equal(computed, expected)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_no_token_and_one(n, m):
    given = heads(n, m, 4)
    blocks = torch.ones(2, 3, -(-n // 64), -(-m // 64), dtype=torch.bool)
    output = block_attention(*given, blocks, scale=1.0)
    agree(output, given[2] if n == m else torch.zeros(2, 3, n, 4, dtype=torch.float64) + 0 * given[0], given, 1e-12)


def test_narrow_non_contiguous_and_large_numbers():
    query, key, value = (each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in heads(9, 9, 4))
    assert not query.is_contiguous()
    blocks = torch.eye(3, dtype=torch.bool).expand(2, 3, 3, 3)
    mask = of_pairs(blocks, 4, 9, 9)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        given = [each.to(dtype) for each in (query, key, value)]
        output = block_attention(*given, blocks, scale=0.5, block=4)
        expected = dense(*(each.double() for each in given), mask, 0.5)
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    large = block_attention(query * 1e4, key * 1e4, value, blocks, scale=1.0, block=4)
    torch.testing.assert_close(large, dense(query * 1e4, key * 1e4, value, mask, 1.0))


@pytest.mark.parametrize("n", [8, 9])
def test_one_product_that_is_taken_apart_as_timm_does(n):
    packed = torch.randn(2, n, 3, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = [*packed.requires_grad_().permute(2, 0, 3, 1, 4).unbind(0)]
    blocks = drawn(-(-n // 4), -(-n // 4), 0.6)
    agree(
        block_attention(*given, blocks, scale=0.5, block=4), dense(*given, of_pairs(blocks, 4, n, n), 0.5), given, 1e-11
    )


def test_what_is_not_a_number_stays_seen():
    query, key, value = (each.detach() for each in heads(8, 8, 4))
    query[0, 0, 1, 2] = math.nan
    output = block_attention(query, key, value, torch.ones(2, 3, 2, 2, dtype=torch.bool), scale=1.0, block=4)
    assert output[0, 0, 1].isnan().all() and output.isnan().sum() == 4


def test_shapes_that_do_not_fit_are_refused():
    query, key, value = heads(8, 8, 4)
    blocks = torch.ones(2, 3, 2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"blocks are bool \[2, 3, 1, 1\] here, not torch.bool \[2, 3, 2, 2\]"):
        block_attention(query, key, value, blocks, scale=1.0)
    with pytest.raises(ValueError, match="blocks are bool"):
        block_attention(query, key, value, blocks.float(), scale=1.0, block=4)
    with pytest.raises(ValueError, match="the same batch and heads"):
        block_attention(query, key[:, :1], value[:, :1], blocks, scale=1.0, block=4)
    with pytest.raises(ValueError, match="1 or more, not 0"):
        block_attention(query, key, value, blocks, scale=1.0, block=0)
