"""QSGD over many draws: no bias, the variance of rounding, below the paper's bound; and its bytes."""

import math

import pytest
import torch

from techniques.communication.qsgd.technique import dequantized, levels_of, quantized
from tests.techniques.communication.given import SHAPES, STEPS, mean_gradients
from tests.techniques.communication.ranks import DRAWS


def once(x: torch.Tensor, bits: int, bucket: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.rand(len(x), generator=generator)
    return dequantized(*quantized(x, bits, bucket, noise), bits, bucket, len(x))


@pytest.mark.parametrize(("bits", "bucket", "length"), [(2, 16, 40), (4, 512, 600), (8, 128, 129), (4, 8, 1)])
def test_the_mean_of_many_draws_is_the_vector_and_their_variance_the_formulas(bits, bucket, length):
    draws, highest = 10_000 // max(1, length // 40), levels_of(bits)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(length, generator=generator)
    whole = torch.nn.functional.pad(x, (0, -length % bucket))  # zeros leave norms as they are
    got = once(whole.repeat(draws), bits, bucket, generator).view(draws, -1)[:, :length].double()
    off, variance = (got.mean(0) - x).abs(), torch.zeros(length).double()
    for start in range(0, length, bucket):
        part = x[start : start + bucket].double()
        level = highest * part.abs() / part.norm()
        share = level - level.floor()
        variance[start : start + bucket] = share * (1 - share) * (part.norm() / highest) ** 2
        bound = min(len(part) / highest**2, math.sqrt(len(part)) / highest) * part.norm() ** 2
        errors = (got[:, start : start + bucket] - part).square().sum(1).mean()
        assert errors <= bound * 1.001
        assert errors.item() == pytest.approx(variance[start : start + bucket].sum().item(), rel=0.1, abs=1e-6)
    assert (off <= 5.5 * (variance / draws).sqrt() + 1e-6).all(), "five and a half standard deviations"


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


def test_by_the_largest_magnitude_levels_lie_closer_and_the_mean_stays_right():
    """As the paper's experiments scale a bucket: its largest entry is the highest level, exactly."""
    x = torch.randn(200, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(6)
    noises = torch.rand(3000, 200, generator=generator)
    draws = torch.stack([dequantized(*quantized(x, 4, 100, noise, "max"), 4, 100, 200) for noise in noises]).double()
    for start in (0, 100):
        part = x[start : start + 100].double()
        level = part.abs().max() / levels_of(4)
        share = part.abs() / level % 1
        expected = (share * (1 - share)).sum() * level**2
        off = draws[:, start : start + 100] - part
        assert off.square().sum(1).mean().item() == pytest.approx(expected.item(), rel=0.05)
        assert off.mean(0).abs().max() < 5 * level / 2 / math.sqrt(3000)
        assert off[:, part.abs().argmax()].abs().max() < 1e-6 < level < part.norm() / levels_of(4)


def test_zeros_stay_zeros_one_entry_alone_is_exact_and_no_number_is_hidden():
    generator = torch.Generator().manual_seed(0)
    assert not once(torch.zeros(10), 4, 4, generator).any()
    alone = torch.zeros(8)
    alone[5] = -3.0
    assert torch.equal(once(alone, 4, 8, generator), alone)
    assert once(torch.tensor([torch.nan, 1.0]), 4, 8, generator).isnan().any()
    assert once(torch.tensor([torch.inf, 1.0]), 4, 8, generator).isnan().any()


def test_many_means_of_ranks_approach_the_gradients_mean(two_ranks):
    """The noise of a mean is 1 / sqrt(draws) of one's: here a fourteenth of at most a level."""
    expected = mean_gradients(0)["matrix"]
    step = expected.norm() / levels_of(4)  # above any bucket's level
    assert (two_ranks[0]["draws"] - expected).abs().max() < 5 * step / math.sqrt(DRAWS)


def test_ranks_round_independently(two_ranks):
    """Were their noise one, the variance of the mean would be that of one rank."""
    off = [
        (means[name].double() - mean_gradients(step)[name]).square().sum()
        for step, means in enumerate(two_ranks[0]["qsgd"]["means"])
        for name in ("matrix", "kernel")
    ]
    assert all(each > 0 for each in off)


def test_a_rank_sends_its_bits_and_a_norm_a_bucket(two_ranks):
    counts = [torch.Size(shape).numel() for shape in SHAPES.values()]
    size = sum(math.ceil(count / 2) + 4 * math.ceil(count / 64) for count in counts)
    assert two_ranks[0]["qsgd"]["ring_bytes"] == STEPS * size
