"""PowerSGD beside torch's own hook on one bucket, its bases, and its mean without feedback."""

import pytest
import torch

from techniques.communication.powersgd.technique import orthogonalised, projected, started
from techniques.communication.shared.matrices import split
from tests.techniques.communication.given import STEPS, mean_gradients


def test_means_are_those_of_torchs_hook(two_ranks):
    """Which remembers the difference from the decompressed mean: the mean over ranks of the memories is the same."""
    pairs = two_ranks[0]["theirs"]["pairs"]
    assert len(pairs) == STEPS
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def iterated(matrix: torch.Tensor, rank: int, steps: int) -> torch.Tensor:
    queries = started({"m": matrix}, ["m"], rank, torch.Generator().manual_seed(0))
    for _ in range(steps):
        bases = orthogonalised({"m": matrix @ queries["m"]})
        queries = projected({"m": matrix}, bases)
    return bases["m"] @ queries["m"].T


@pytest.mark.parametrize("own_rank", [0, 1, 2])
def test_a_matrix_of_no_higher_rank_comes_back_as_it_is(own_rank):
    """Columns that depend on others, or are zeros, are counted once."""
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(10, own_rank, generator=generator) @ torch.randn(own_rank, 8, generator=generator)
    torch.testing.assert_close(iterated(matrix, 2, 2), matrix, rtol=1e-5, atol=1e-5)


def test_bases_are_orthonormal_whatever_the_shapes():
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (9, 2), "b": (9, 2), "c": (5, 2), "d": (2, 2)}
    matrices = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    matrices["b"][:, 1] = 3 * matrices["b"][:, 0]
    bases = orthogonalised(matrices)
    assert sorted(bases) == list(shapes)
    for name, basis in bases.items():
        torch.testing.assert_close(basis.T @ basis, torch.eye(2), rtol=0, atol=1e-6)
        torch.testing.assert_close(basis @ (basis.T @ matrices[name]), matrices[name], rtol=1e-5, atol=1e-5)


def test_without_feedback_the_mean_is_projected(two_ranks):
    """P P^T of the gradients' mean, of rank 2."""
    for step, means in enumerate(two_ranks[0]["powersgd_without"]["means"]):
        mean, got = mean_gradients(step)["matrix"], means["matrix"].double()
        assert torch.linalg.svdvals(got)[2:].max() < 1e-5
        torch.testing.assert_close((mean - got).norm() ** 2, mean.norm() ** 2 - got.norm() ** 2, rtol=1e-5, atol=1e-5)


def test_small_matrices_and_vectors_go_as_they_are():
    low, others = split(
        {"a": torch.zeros(24, 16), "b": torch.zeros(2, 3), "c": torch.zeros(9), "d": torch.zeros(())}, 2
    )
    assert list(low) == ["a"] and list(others) == ["b", "c", "d"]
