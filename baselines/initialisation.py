"""Says how the CPU sizes begin, so that a run of seconds learns: positions that differ, branches that start small.

The papers' initialisation is one for width 768. Its standard deviation of 0.02 is about half of 1/sqrt(768); at width
64 it is a sixth of 1/sqrt(64), queries and keys are almost 0, and training waits at a saddle for most of its steps.
``base`` and ``large`` begin as the papers did.
"""

import math

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy, weight_matrix


def weight_deviation(width: int) -> float:
    """Returns the standard deviation of the weights of a model of ``width``, a little below 1/sqrt(width)."""
    return 0.8 / math.sqrt(width)


def sinusoids(positions: int, width: int, longest: float, rms: float) -> Tensor:
    """Computes sines and cosines of positions [positions, width] (Vaswani et al., arXiv 1706.03762, section 3.5) whose
    root mean square is ``rms``: wavelengths from 2 pi to 2 pi ``longest``, which should fit the row, where the paper
    has 10 000.
    """
    frequencies = longest ** -(torch.arange(width // 2) / (width // 2))
    angles = torch.arange(positions)[:, None] * frequencies
    return rms * math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=1)


@torch.no_grad()
def begin_at_sinusoids(embedding: nn.Embedding, longest: float, rms: float) -> None:
    """Makes learned positions begin at :func:`sinusoids`: random ones tell neighbours apart no better than
    strangers."""
    embedding.weight.copy_(sinusoids(embedding.num_embeddings, embedding.embedding_dim, longest, rms))


@torch.no_grad()
def shrink_branches(model: nn.Module, factor: float) -> None:
    """Scales what each block's attention and MLP put out, so that the tokens' own signal reaches the head at first.

    After each sum BERT normalises anew: with branches as large as what they are added to, every block halves the
    tokens' share of the variance. GPT-2 itself begins with small ones (1/sqrt(2 x blocks)).
    """
    for block in anatomy(model).every_block:
        for branch in block.branches:
            weight_matrix(branch.module).mul_(factor)
