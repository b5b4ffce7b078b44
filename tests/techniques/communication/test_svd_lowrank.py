"""Truncated SVD: the best of its rank by a bound that any other factors obey, and its bytes."""

import torch

from techniques.communication.svd_lowrank.technique import SVDLowRank, truncated
from tests.techniques.communication.given import RANKS, STEPS, gradients


def test_nothing_of_that_rank_is_closer():
    """What is lost is the norm of the other singular values (Eckart, Young, Mirsky), as eigenvalues in float64 say."""
    matrix = torch.randn(13, 7, generator=torch.Generator().manual_seed(0))
    technique = SVDLowRank(rank=3)
    message = technique.compress(matrix)
    kept = technique.decompress(message, matrix.shape)
    rest = torch.linalg.eigvalsh(matrix.double().T @ matrix.double())[:-3].sum()
    torch.testing.assert_close((matrix - kept).double().square().sum(), rest, rtol=1e-5, atol=1e-5)
    assert torch.linalg.matrix_rank(kept) == 3
    assert [tuple(part.shape) for part in message] == [(13, 3), (3,), (3, 7)]


def test_the_whole_rank_is_the_matrix():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    u, s, vt = truncated(matrix, 4)
    torch.testing.assert_close((u * s) @ vt, matrix)


def test_the_ranks_mean_is_that_of_their_own_approximations(two_ranks):
    got = two_ranks[0]["svd_lowrank"]["means"][0]
    total = torch.zeros(8, 12).double()
    for rank in range(RANKS):
        matrix = gradients(0, rank)["kernel"].double().view(8, 12)
        _, vectors = torch.linalg.eigh(matrix.T @ matrix)
        total += matrix @ vectors[:, -2:] @ vectors[:, -2:].T
    torch.testing.assert_close(got["kernel"].double().view(8, 12), total / RANKS, rtol=1e-4, atol=1e-5)


def test_a_rank_sends_r_times_n_plus_m_plus_one_numbers(two_ranks):
    gathered, reduced = 2 * (24 + 16 + 1) + 2 * (8 + 12 + 1), 17 + 6
    assert two_ranks[0]["svd_lowrank"]["ring_bytes"] == STEPS * 4 * (gathered + reduced)
