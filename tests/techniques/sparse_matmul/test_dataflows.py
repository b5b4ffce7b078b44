"""Three orders of one product against scipy, and what each takes."""

import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.sparse_matmul.shared.dataflows import (
    dense,
    expanded,
    gustavson,
    in_rows,
    inner,
    multiplications,
    outer,
    rows_of,
)


def matrix(n: int, m: int, density: float, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(n, m, generator=random, dtype=torch.float64)
    return values * (torch.rand(n, m, generator=random) < density)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.sampled_from([0.0, 0.2, 0.6, 1.0]), st.integers(0, 99)
)
def test_all_orders_give_scipys_product_with_the_same_multiplications(n, k, m, density, seed):
    a, b = matrix(n, k, density, seed), matrix(k, m, density, seed + 1)
    exact = torch.from_numpy((scipy.sparse.csr_array(a.numpy()) @ scipy.sparse.csr_array(b.numpy())).toarray())
    results = [inner(rows_of(a), rows_of(b), m), gustavson(rows_of(a), rows_of(b)), outer(rows_of(a), rows_of(b))]
    made = multiplications(a, b)
    for each in results:
        torch.testing.assert_close(dense(each.rows, m), exact)
        assert each.counts.multiplications == made
    torch.testing.assert_close(expanded(in_rows(a), in_rows(b)).to_dense(), exact)
    by_inner, by_rows, by_outer = (each.counts for each in results)
    assert by_inner.comparisons >= made and not by_rows.comparisons and not by_outer.comparisons
    assert by_rows.read == int((a != 0).sum()) + made
    assert by_outer.read == int((a != 0).sum()) + int((b != 0).sum()) and by_outer.stored == made


def test_shapes_that_do_not_fit_are_refused():
    for order in (gustavson, outer):
        with pytest.raises(ValueError, match="A has a column 2 and B 2 rows"):
            order(rows_of(torch.ones(2, 3)), rows_of(torch.ones(2, 2)))
    with pytest.raises(ValueError, match="as many as B's rows"):
        inner(rows_of(torch.ones(2, 3)), rows_of(torch.ones(2, 2)), 2)
