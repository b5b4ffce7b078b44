"""Products of int8 beside int64, at the sizes and the numbers where 16 bits or float32 would lose something."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.meters.flops import FlopCounter
from techniques.precision.shared.integer_product import PIECE, in_pieces, integer_product

BOTH = pytest.mark.parametrize("product", [integer_product, in_pieces], ids=["operator", "in_pieces"])


@BOTH
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.sampled_from([0, 1, 2, 9, 64, PIECE, PIECE + 1, 2 * PIECE + 3]), st.integers(0, 40))
def test_sums_are_int64s(product: Callable[[Tensor, Tensor], Tensor], m: int, k: int, n: int) -> None:
    generator = torch.Generator().manual_seed(m + n)
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator) for shape in ((m, k), (n, k)))
    ours = product(a, b.T)
    assert ours.dtype == torch.int32 and torch.equal(ours.long(), a.long() @ b.long().T)


@BOTH
@pytest.mark.parametrize("k", [2, PIECE - 1, PIECE, PIECE + 1, 100 * PIECE + 7])
def test_sums_of_the_largest_magnitudes_lose_no_unit(product: Callable[[Tensor, Tensor], Tensor], k: int) -> None:
    a = torch.full((3, k), -128, dtype=torch.int8)
    b = torch.stack([torch.full((k,), value, dtype=torch.int8) for value in (-128, 127)], 1)
    a[1, 0], a[2] = -127, 127  # one less, odd
    assert torch.equal(product(a, b).long(), a.long() @ b.long())


def test_its_flops_are_counted_once_and_no_values_are_needed() -> None:
    a, b = torch.ones(3, 5, dtype=torch.int8), torch.ones(5, 4, dtype=torch.int8)
    with FlopCounter() as counter:
        integer_product(a, b)
    assert counter.total == 2 * 3 * 5 * 4
    fake = integer_product(a.to("meta"), b.to("meta"))
    assert fake.shape == (3, 4) and fake.dtype == torch.int32
