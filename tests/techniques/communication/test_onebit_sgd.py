"""1-bit SGD against columns by hand, against all other pairs of values, and its bytes."""

import math

import pytest
import torch

from techniques.communication.onebit_sgd.technique import one_bit, two_valued
from tests.techniques.communication.given import RANKS, SHAPES, STEPS, gradients


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


def test_no_other_pair_of_values_has_a_smaller_squared_error():
    x = torch.randn(200, generator=torch.Generator().manual_seed(2))
    means, bits = one_bit(x)
    least = (x - two_valued(means, bits, x.shape)).square().sum()
    for shift in ((0.01, 0.0), (0.0, 0.01), (-0.01, 0.01)):
        assert (x - two_valued(means + torch.tensor(shift)[:, None], bits, x.shape)).square().sum() > least


def test_numbers_that_are_not_finite_stay_visible():
    x = torch.tensor([1.0, torch.nan, -1.0])
    assert two_valued(*one_bit(x), x.shape).isnan().any()


def test_the_ranks_mean_is_that_of_their_two_valued_columns(two_ranks):
    first = two_ranks[0]["onebit_sgd"]["means"][0]
    for name in SHAPES:
        expected = sum(by_hand(gradients(0, rank)[name]) for rank in range(RANKS)) / RANKS
        torch.testing.assert_close(first[name].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_rank_sends_a_bit_an_entry_and_two_values_a_column(two_ranks):
    columns = {"matrix": 16, "kernel": 12, "vector": 1, "thin": 3}
    size = sum(math.ceil(torch.Size(shape).numel() / 8) + 8 * columns[name] for name, shape in SHAPES.items())
    assert two_ranks[0]["onebit_sgd"]["ring_bytes"] == STEPS * size
