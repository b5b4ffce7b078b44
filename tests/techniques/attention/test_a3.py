"""A3's batched search against its heap, and its masks at their edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from techniques.attention.a3.heap import search
from techniques.attention.a3.technique import A3, candidates, greedy_scores, multiplications
from techniques.attention.shared.kept_pairs import pairs_of


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 60), st.integers(0, 99))
def test_the_heap_takes_the_largest_and_the_smallest_products(keys, width, pops, seed):
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(width, generator=random, dtype=torch.float64)
    key = torch.randn(keys, width, generator=random, dtype=torch.float64)
    batched = greedy_scores(query[None], key, torch.ones(1, keys, dtype=torch.bool), torch.tensor([pops]))[0]
    found = search(query, key, pops)
    torch.testing.assert_close(torch.tensor(found.greedy, dtype=torch.float64), batched)
    assert found.products <= 2 * min(pops + width, keys * width)
    if pops >= keys * width:
        torch.testing.assert_close(batched, key @ query)


def test_a_query_without_a_candidate_keeps_its_best_visible_key():
    greedy = torch.tensor([[-1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 2.0, -1.0]])
    visible = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    assert candidates(greedy, visible).tolist() == [[True, False, False], [False] * 3, [True, True, False]]


def test_counted_multiplications():
    assert multiplications(320, 64, 160, 0, 0) == 2 * (160 + 64)
    assert multiplications(4, 3, 100, 2, 1) == 2 * 12 + 2 * 3 + 3
    assert multiplications(4, 3, 0, 0, 0) == 0


def test_the_shortest_rows():
    for n in (1, 2):
        query = torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(n))
        assert A3().pair_mask(torch.nn.Identity(), pairs_of(query, -query, None, True, 0.5)).any(-1).all()


def test_a_negative_number_of_pops_is_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        search(torch.ones(2), torch.ones(3, 2), -1)
