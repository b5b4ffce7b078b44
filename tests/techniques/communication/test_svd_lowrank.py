"""Truncated SVD against the bound that any other factors obey."""

import torch

from techniques.communication.svd_lowrank.technique import SVDLowRank


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
