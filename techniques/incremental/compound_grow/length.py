"""Makes inputs shorter: means over neighbouring tokens for the blocks, or rows that are cut.

CompoundGrow (arXiv 2010.12562, section 3.2) pools embeddings: unlike in a cut row, every position keeps a part. A
causal model cannot pool: a mean would show a token the next one, which it is to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.data import Batch, Data, Transform
from suite.loop.run import Run
from suite.model.anatomy import Block, anatomy
from suite.model.calls import undisturbed
from suite.model.replica import Replica, each_design


def neighbours(tokens: int, size: int) -> list[int]:
    """Returns the pool of each token: the first alone (it stands for the whole row in BERT), the others by ``size``."""
    return [0, *(1 + token // size for token in range(tokens - 1))]


def pooled(hidden: Tensor, size: int) -> Tensor:
    """Computes the means over neighbours of hidden states [batch, tokens, width]: [batch, 1 + ceil((tokens - 1) /
    size), width]."""
    pools = neighbours(hidden.shape[1], size)
    sums = hidden.new_zeros(len(hidden), pools[-1] + 1, hidden.shape[2])
    sums = sums.index_add(1, torch.tensor(pools, device=hidden.device), hidden)
    counts = [pools.count(pool) for pool in range(pools[-1] + 1)]
    return sums / torch.tensor(counts, dtype=hidden.dtype, device=hidden.device)[:, None]


def through_pools(size: int) -> Callable[[Callable[[Tensor], Any], Tensor], Any]:
    """Runs a function of hidden states on pools: what it adds to a pool is added to each of its tokens."""

    def wrapper(function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
        pools = pooled(hidden, size)
        output = function(pools)
        after, *rest = output if isinstance(output, tuple) else (output,)
        owner = torch.tensor(neighbours(hidden.shape[1], size), device=hidden.device)
        tokens = hidden + (after - pools).index_select(1, owner)
        return (tokens, *rest) if isinstance(output, tuple) else tokens

    return wrapper


@dataclass(frozen=True)
class Shorter:
    """Transforms rows of tokens, which are cut into ``pieces``: one piece of each, another one in every batch."""

    whole: Transform
    pieces: int

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        piece = generator.initial_seed() % self.pieces
        rows = {
            name: tensor.chunk(self.pieces, 1)[piece] if tensor.ndim == 2 else tensor for name, tensor in batch.items()
        }
        return self.whole(rows, generator)


def with_shorter_rows(data: Data, pieces: int) -> Data:
    """Returns the data with its training rows cut into pieces. Raises ValueError where they cannot be."""
    rows = [tensor.shape[1] for tensor in data.train.tensors.values() if tensor.ndim == 2]
    if not rows or any(tokens % pieces or tokens < 2 * pieces for tokens in rows):
        raise ValueError(
            f"rows of {rows} tokens cannot be cut into {pieces} pieces of two tokens or more: use length=1"
        )
    held_out = data.test_transform or data.transform
    return replace(data, transform=Shorter(data.transform, pieces), test_transform=held_out)


def looks_ahead(block: Block, replica: Replica) -> bool:
    """Tells whether what comes out at the first token depends on later ones."""
    (gradient,) = torch.autograd.grad(replica()[:, :1].sum(), replica.hidden)
    return bool(gradient[:, 1:].any())


def can_pool(model: nn.Module, run: Run, size: int) -> bool:
    """Tells whether the tokens of ``model``, which is the run's to be, may be pooled: not where blocks are causal.

    Raises ValueError where blocks get something for each token (rotary positions, a mask), which pools lack.
    """
    blocks = anatomy(model).blocks
    if not each_design(model, blocks[:1], partial(run.trial, model), looks_ahead)[0]:
        return False
    pools = anatomy(model).segmented([(0, len(blocks))], through_pools(size))
    try:
        with undisturbed(model), torch.no_grad(), pools:
            model.eval()
            run.trial(model)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{type(model).__name__} gives its blocks something for each token, so that tokens cannot be pooled "
            f"({error}): use length=1"
        ) from error
    return True
