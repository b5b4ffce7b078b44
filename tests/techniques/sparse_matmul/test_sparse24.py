"""2:4 masks against every mask that there is, and the product's derivatives."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from suite.loop.technique import Unavailable
from techniques.sparse_matmul.sparse24 import products
from techniques.sparse_matmul.sparse24.products import SemiStructuredLinear, unfit
from techniques.sparse_matmul.sparse24.technique import Sparse24, by_tiles, patterns
from tests.runs import new_run


def weight(out: int, features: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(out, features, generator=torch.Generator().manual_seed(seed))


def test_tiles_are_the_best_of_all_masks_that_are_two_of_four_both_ways():
    masks = [
        bits
        for bits in product((0, 1), repeat=16)
        if all(sum(bits[4 * i : 4 * i + 4]) == 2 and sum(bits[i::4]) == 2 for i in range(4))
    ]
    assert len(masks) == 90 == len(patterns()) and {tuple(map(int, each)) for each in patterns().tolist()} == set(masks)
    w = weight(8, 12)
    mask = by_tiles(w)
    assert (mask.view(8, 3, 4).sum(-1) == 2).all() and (mask.T.reshape(12, 2, 4).sum(-1) == 2).all()
    every = torch.tensor(masks, dtype=torch.float32)
    for i, j in product(range(2), range(3)):
        tile, kept = (x[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for x in (w, mask))
        assert tile[kept].abs().sum() == pytest.approx((every @ tile.abs().flatten()).max().item())


def test_tiles_are_two_of_four_both_ways_in_a_run_too():
    run = new_run("gpt", "sparse24:pattern=tiles", size="pico", recipe="classic", steps=1)
    for part in run.anatomy.linears:
        kept = part.module.weight.ne(0)
        assert all((x.reshape(len(x), -1, 4).sum(-1) == 2).all() for x in (kept, kept.T))


def test_the_product_has_its_derivatives_where_sparse_products_are_dense_ones(monkeypatch):
    monkeypatch.setattr(products, "to_sparse_semi_structured", lambda weight: weight)
    for inner in (nn.Linear(8, 6), Conv1D(6, 8)):
        layer, x = SemiStructuredLinear(inner), torch.randn(2, 3, 8, requires_grad=True)
        matrix = inner.weight.T if isinstance(inner, Conv1D) else inner.weight
        d_out = torch.randn(2, 3, 6)
        ours = torch.autograd.grad(layer(x), (x, inner.weight, inner.bias), d_out)
        expected = F.linear(x, matrix, inner.bias)
        torch.testing.assert_close(layer(x), expected)
        for mine, other in zip(ours, torch.autograd.grad(expected, (x, inner.weight, inner.bias), d_out), strict=True):
            torch.testing.assert_close(mine, other)


def test_what_cannot_be_is_refused_with_a_reason():
    with pytest.raises(Unavailable, match=r"sparse tensor cores are a GPU's, and this is cpu: say execution=masked"):
        new_run("gpt", "sparse24:execution=semi_structured", size="pico", recipe="classic", steps=1)
    assert "48 x 64 is not of whole multiples of 32 x 64" in unfit(nn.Linear(64, 48), torch.device("cuda"))
    assert not unfit(nn.Linear(64, 32), torch.device("cuda"))
    run = new_run("gpt", size="pico", recipe="classic", steps=1)
    with pytest.raises(ValueError, match="6 inputs of here are no whole groups of 4"):
        Sparse24().check("here", nn.Linear(6, 8), run.device)
    with pytest.raises(ValueError, match="6 outputs of here are no whole groups of 4"):
        Sparse24(pattern="tiles").check("here", nn.Linear(8, 6), run.device)
    with pytest.raises(ValueError, match="two techniques of sparse training cannot be stacked"):
        new_run("gpt", "sparse24+snip", size="pico", recipe="classic", steps=1)
