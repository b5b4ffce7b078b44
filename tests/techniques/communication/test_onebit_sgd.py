"""1-bit SGD against columns by hand, of every shape and sign."""

import math

import pytest
import torch

from techniques.communication.onebit_sgd.technique import one_bit, two_valued


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """Float64, column by column."""
    matrix = x.double().reshape(x.shape[0] if x.ndim else 1, -1).clone()
    for column in range(matrix.shape[1]):
        for positive in (False, True):
            values = x.double().reshape(matrix.shape)[:, column]
            side = (values >= 0) == positive
            if side.any():
                matrix[side, column] = values[side].mean()
    return matrix.view(x.shape)


@pytest.mark.parametrize("shape", [(), (1,), (9,), (5, 3), (4, 3, 2, 2), (64, 17)])
def test_each_entry_becomes_the_mean_of_its_side_of_its_column(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    means, bits = one_bit(x)
    assert bits.dtype == torch.uint8 and len(bits) == math.ceil(x.numel() / 8)
    torch.testing.assert_close(two_valued(means, bits, x.shape).double(), by_hand(x), rtol=1e-6, atol=1e-7)


def test_columns_of_one_sign_and_of_zeros():
    x = torch.tensor([[1.0, -1.0, 0.0], [3.0, -2.0, 0.0]])
    means, bits = one_bit(x)
    assert torch.equal(two_valued(means, bits, x.shape), torch.tensor([[2.0, -1.5, 0.0], [2.0, -1.5, 0.0]]))


def test_numbers_that_are_not_finite_stay_visible():
    x = torch.tensor([1.0, torch.nan, -1.0])
    assert two_valued(*one_bit(x), x.shape).isnan().any()
