"""Top-k against a search through all entries, of every shape."""

import math

import pytest
import torch

from techniques.communication.shared.sparse import scattered, top_k


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, 4, 2)])
def test_the_largest_are_kept_and_the_rest_is_zero(shape, ratio):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values, indices = top_k(x, ratio)
    kept = scattered(values, indices, x.shape)
    count = max(1, math.ceil(ratio * x.numel()))
    assert values.dtype == torch.float32 and indices.dtype == torch.int32 and len(indices) == count
    assert int((kept != 0).sum()) == count and torch.equal(kept[kept != 0], x[kept != 0])
    dropped = x[kept == 0].abs()
    assert not dropped.numel() or dropped.max() <= kept[kept != 0].abs().min()
