"""ELSA's factors at every width, its integer test at every distance and length, and its shortest rows."""

import math
from functools import reduce

import pytest
import torch

from techniques.attention.elsa.hashing import factors, project, sizes
from techniques.attention.elsa.technique import THRESHOLD, Elsa, estimates, farthest
from techniques.attention.shared.kept_pairs import Pairs, pairs_of


def pairs(n: int = 24, d: int = 16, causal: bool = False, seed: int = 0) -> Pairs:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(2, 2, n, d, generator=random) for _ in range(2))
    return pairs_of(query, key * torch.linspace(0.5, 2, n)[:, None], None, causal, d**-0.5)


def layer(threshold: float) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer(THRESHOLD, torch.tensor(threshold))
    return module


@pytest.mark.parametrize(
    ("width", "expected"), [(64, [4, 4, 4]), (16, [4, 4]), (12, [4, 3]), (10, [2, 5]), (7, [7]), (2, [2]), (1, [1])]
)
def test_factors_multiply_to_the_width_and_are_orthogonal(width, expected):
    assert sizes(width) == expected and math.prod(expected) == width
    whole = reduce(torch.kron, [each.double() for each in factors(width)])
    torch.testing.assert_close(whole @ whole.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-5)
    x = torch.randn(3, 5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(project(x, factors(width)), x @ whole.T)


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.2, 0.6, 1.5])
def test_the_integer_test_is_the_float_test_for_every_distance_and_length(threshold):
    k = 16
    lengths = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0])
    key = torch.zeros(1, 1, 5, k)
    key[..., 0] = lengths
    p = pairs_of(torch.zeros(1, 1, k + 1, k), key, None, False, 1.0)
    distance = torch.arange(k + 1.0)[:, None].expand(1, 1, k + 1, 5)
    estimated = estimates(distance, p, 0.127)
    near = (estimated - threshold).abs() < 1e-5
    assert torch.equal((estimated > threshold) & ~near, (distance <= farthest(p, threshold, 0.127)) & ~near)


@pytest.mark.parametrize("n", [1, 2])
def test_the_shortest_rows(n):
    assert Elsa().pair_mask(layer(2.0), pairs(n, causal=True)).any(-1).all()
