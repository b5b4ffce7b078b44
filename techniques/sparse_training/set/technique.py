"""Implements SET: sparse evolutionary training, whose connections nearest to zero make room for random ones after every
epoch.

Mocanu, Mocanu, Stone, Nguyen, Gibescu & Liotta, "Scalable training of artificial neural networks with adaptive sparse
connectivity inspired by network science" (Nature Communications 9:2383, 2018, arXiv 1707.04780), equation 1 and its
algorithm: a layer from n to m units starts as an Erdős–Rényi graph,

    p(connection) = epsilon (n + m) / (n m)

and after each epoch but the last it loses the share zeta of its smallest positive and of its largest negative weights,
and gets as many connections at random places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from techniques.shared.sparse.block_sparse import BlockMasked, expanded, magnitudes
from techniques.shared.sparse.masks import attach, check_sparsity, masked, rewire
from techniques.shared.sparse.topology import erk_densities


def erdos_renyi(shapes: Sequence[tuple[int, int]], epsilon: float) -> list[float]:
    """Computes equation 1: the probability of a connection in each [n, m] matrix, at most 1."""
    return [min(1.0, epsilon * (n + m) / (n * m)) for n, m in shapes]


def core(weight: Tensor, mask: Tensor, zeta: float) -> Tensor:
    """Returns the connections that stay, a mask: all but the share ``zeta`` of the smallest positive and of the largest
    negative weights, each rounded down, and those at 0."""
    survivors = torch.zeros_like(mask).flatten()
    for size in (weight, -weight):
        alive = mask & (size > 0)
        count = int(alive.sum())
        largest = size.masked_fill(~alive, -math.inf).flatten().topk(count - int(zeta * count))
        survivors[largest.indices] = True
    return survivors.view_as(mask)


def regrown(survivors: Tensor, connections: int, generator: torch.Generator) -> Tensor:
    """Returns the mask ``survivors`` with random ones added, of all that it lacks with equal chance, up to
    ``connections`` ones."""
    mask = survivors.flatten().clone()
    free = (~mask).nonzero()[:, 0]
    chosen = torch.randperm(len(free), generator=generator)[: connections - int(mask.sum())]
    mask[free[chosen.to(free.device)]] = True
    return mask.view_as(survivors)


@dataclass
class Set(BlockMasked):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    ``epsilon`` 0 solves equation 1 for the whole ``sparsity``; else it decides, and ``sparsity`` does not count.
    ``interval`` 0 chooses an epoch, or less in a short run: so many steps that about 25 evolutions fit.
    Blocks come and go as a whole: those go whose weights' magnitudes have the smallest sum.
    """

    sparsity: float = 0.8
    epsilon: float = 0.0
    zeta: float = 0.3
    interval: int = 0
    evolved: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))

    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0, "epsilon": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is positive, the paper's is 20, or 0 to meet the sparsity, not {self.epsilon}")
        if not 0 < self.zeta <= 1:
            raise ValueError(f"zeta is the share of connections that evolve, in (0, 1], not {self.zeta}")
        if self.interval < 0:
            raise ValueError(f"interval is 1 step or more, or 0 to choose it by the run's length, not {self.interval}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        parts = self.layers(model)
        layers: list[Any] = [part.module for part in parts]
        shapes = [tuple(layer.weight.shape) for layer in layers]
        densities = erdos_renyi(shapes, self.epsilon) if self.epsilon else erk_densities(shapes, self.sparsity)
        if min(densities) == 1:
            least = max(n * m / (n + m) for n, m in shapes)
            raise ValueError(f"epsilon {self.epsilon:g} makes every layer dense: choose one below {least:g}")
        for layer, (n, m), density in zip(layers, shapes, densities, strict=True):
            blocks = torch.rand(n // self.block, m // self.block, generator=run.generator) < density
            attach(layer, expanded(blocks, self.block))
        self.execute(model, parts)
        return model

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        super().after_step(run)
        if self.is_reference or run.step % self.steps_between(run) or run.step >= run.recipe.steps:
            return
        for weight, mask in masked(run.anatomy):
            blocks = mask[:: self.block, :: self.block]
            survivors = core(magnitudes(weight, self.block), blocks, self.zeta)
            new = regrown(survivors, int(blocks.sum()), run.generator)
            rewire(run, weight, mask, expanded(survivors, self.block), expanded(new, self.block))
        self.evolved()

    def steps_between(self, run: Run) -> int:
        epoch = math.ceil(len(run.data.train) / run.recipe.batch_size)
        return self.interval or max(2, min(epoch, run.recipe.steps // 25))

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**super().sites(run), "evolves": self.evolved}
