"""QSGD's levels at every width, and what is zero, alone or not finite."""

import math

import pytest
import torch

from techniques.communication.qsgd.technique import dequantized, levels_of, quantized


def once(x: torch.Tensor, bits: int, bucket: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.rand(len(x), generator=generator)
    return dequantized(*quantized(x, bits, bucket, noise), bits, bucket, len(x))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_entry_is_one_of_its_two_levels(bits):
    x = torch.randn(300, generator=torch.Generator().manual_seed(3))
    noise = torch.rand(300, generator=torch.Generator().manual_seed(4))
    norms, codes = quantized(x, bits, 100, noise)
    assert norms.shape == (3,) and len(codes) == math.ceil(300 * bits / 8)
    for start in range(0, 300, 100):
        part, us = x[start : start + 100].double(), noise[start : start + 100].double()
        level = (levels_of(bits) * part.abs() / part.norm() + us).floor()
        expected = part.sign() * level * part.norm() / levels_of(bits)
        got = dequantized(norms, codes, bits, 100, 300)[start : start + 100].double()
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_zeros_stay_zeros_one_entry_alone_is_exact_and_no_number_is_hidden():
    generator = torch.Generator().manual_seed(0)
    assert not once(torch.zeros(10), 4, 4, generator).any()
    alone = torch.zeros(8)
    alone[5] = -3.0
    assert torch.equal(once(alone, 4, 8, generator), alone)
    assert once(torch.tensor([torch.nan, 1.0]), 4, 8, generator).isnan().any()
    assert once(torch.tensor([torch.inf, 1.0]), 4, 8, generator).isnan().any()
