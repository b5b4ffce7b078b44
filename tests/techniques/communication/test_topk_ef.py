"""Top-k against a search through all entries, and its bytes."""

import math

import pytest
import torch

from techniques.communication.shared.sparse import scattered, top_k
from tests.techniques.communication.given import RANKS, SHAPES, STEPS, gradients, mean_gradients


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


def test_kept_energy_is_at_least_the_share_of_the_entries():
    """The contraction that the paper's proof needs, tight for equal magnitudes."""
    for x in (torch.randn(1000), torch.ones(1000), torch.cat([torch.ones(1), torch.zeros(999)])):
        kept = scattered(*top_k(x, 0.05), x.shape)
        assert kept.square().sum() >= 0.05 * x.square().sum() * (1 - 1e-6)


def test_trajectory_is_algorithm_1s(two_ranks):
    """Written once more, in float64 and by sorting."""
    memory = [{name: torch.zeros(shape).double() for name, shape in SHAPES.items()} for _ in range(RANKS)]
    for step in range(STEPS):
        for name, shape in SHAPES.items():
            total = torch.zeros(shape).double()
            for rank in range(RANKS):
                wanted = memory[rank][name] + gradients(step, rank)[name].double()
                smallest = wanted.abs().flatten().sort().values[-max(1, math.ceil(0.1 * wanted.numel()))]
                kept = wanted * (wanted.abs() >= smallest)
                memory[rank][name] = wanted - kept
                total += kept
            torch.testing.assert_close(
                two_ranks[0]["topk_ef"]["means"][step][name].double(), total / RANKS, rtol=1e-5, atol=1e-6
            )


def test_all_entries_are_data_parallelisms_mean(two_ranks):
    for step, means in enumerate(two_ranks[0]["topk_whole"]["means"]):
        for name, each in mean_gradients(step).items():
            assert torch.equal(means[name], each.float())
    assert all(not each.any() for each in two_ranks[0]["topk_whole"]["errors"].values())


def test_a_rank_sends_eight_bytes_an_entry(two_ranks):
    counts = [max(1, math.ceil(0.1 * torch.Size(shape).numel())) for shape in SHAPES.values()]
    assert two_ranks[0]["topk_ef"]["ring_bytes"] == STEPS * 8 * sum(counts)
