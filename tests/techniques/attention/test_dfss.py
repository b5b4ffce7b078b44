"""N of M consecutive scores against a loop over groups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.attention.dfss.technique import pattern_of
from techniques.shared.sparse.n_of_m import largest_of_each


def by_loops(scores: Tensor, n: int, m: int) -> Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for row, of_row in zip(scores, kept, strict=True):
        for first in range(0, len(row), m):
            group = row[first : first + m].tolist()
            for place in sorted(range(len(group)), key=lambda i: -group[i])[:n]:  # stable: of equal ones the first
                of_row[first + place] = True
    return kept


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 13), st.sampled_from([(1, 2), (2, 4), (1, 4), (3, 3)]), st.integers(0, 99), st.booleans())
def test_of_each_group_the_largest_are_kept(keys, pattern, seed, ties):
    scores = torch.randn(3, keys, generator=torch.Generator().manual_seed(seed))
    scores = scores.round() if ties else scores
    assert torch.equal(largest_of_each(scores, *pattern), by_loops(scores, *pattern))


def test_bad_settings_say_what_to_do():
    assert pattern_of("auto", torch.float16) == (2, 4)
    with pytest.raises(ValueError, match="of 2 scores 1 to 2 can be kept, not 3"):
        largest_of_each(torch.ones(4), 3, 2)
