"""Implements Deep Gradient Compression: top-k sparsification that momentum survives.

Lin, Han, Mao, Wang & Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training"
(ICLR 2018, arXiv 1712.01887), Algorithm 4; of N ranks:

    g = clip(g, c / sqrt(N))                            local gradient clipping       (section 3.2)
    u = mu u + g          v = v + u                     momentum correction           (section 3.2, equation 4)
    sent: the largest entries of v                      at a ratio of 0.25, 0.0625, 0.0156, 0.0039 in the warm-up, 0.001
    u = v = 0 where v was sent                          momentum factor masking       (section 3.3)
    w = w - eta mean of what was sent

What is added up locally is the velocity, not the gradient: so an entry that is sent late has moved as far as momentum
SGD would have moved it. A masked velocity carries no stale direction on. Vectors are reduced as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import ParameterGroups
from techniques.communication.shared.exchange import clipped, gathered, mean_over_ranks
from techniques.communication.shared.ranks import CompressedRanks
from techniques.communication.shared.sparse import scattered, top_k
from techniques.shared.sgd import SGD

STAGES = 4
"""Of the warm-up; each sends a quarter of the stage before (section 3.3)."""


def corrected(gradient: Tensor, velocity: Tensor, pending: Tensor, momentum: float, ratio: float) -> tuple[Tensor, ...]:
    """Returns the values and indices, as :func:`top_k` gives them, of what is sent; ``velocity`` and ``pending`` (u and
    v) in place."""
    pending += velocity.mul_(momentum).add_(gradient)
    values, indices = top_k(pending, ratio)
    for tensor in (velocity, pending):
        tensor.view(-1)[indices] = 0.0
    return values, indices


def ratio_at(progress: float, ratio: float, warmup: float) -> float:
    """Returns the share of entries that are sent at ``progress``, in [0, 1], whose part ``warmup`` is the warm-up."""
    if progress >= warmup:
        return ratio
    return max(ratio, 0.25 ** (1 + math.floor(STAGES * progress / warmup)))


@dataclass
class DGC(CompressedRanks):
    """``ratio`` of a matrix' entries are sent after the first ``warmup`` of the run (4 of 90 epochs in the paper).

    In place of AdamW SGD with ``momentum``, at ``factor`` times its learning rate, as ``sgd_momentum``; the decay takes
    as much off the weights in a step as AdamW's, and no part in the momentum.
    """

    ratio: float = 0.001
    warmup: float = 0.05
    momentum: float = 0.9
    factor: float = 100.0
    velocities: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    largest_norm: float = field(init=False, repr=False, default=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio, the share of entries that are sent, lies in (0, 1], not {self.ratio}")
        if not (0 <= self.warmup < 1 and 0 <= self.momentum < 1):
            raise ValueError(f"warmup and momentum lie in [0, 1), not {self.warmup} and {self.momentum}")
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")

    def recipe(self, recipe: Recipe) -> Recipe:
        """Makes clipping local, before anything is added up."""
        self.largest_norm = recipe.gradient_clip / math.sqrt(self.ranks)
        rate, decay = recipe.learning_rate * self.factor, recipe.weight_decay / self.factor
        return replace(super().recipe(recipe), learning_rate=rate, weight_decay=decay, gradient_clip=0.0)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> SGD:
        return SGD(parameters, lr=recipe.learning_rate, momentum=0.0, fused=recipe.fused_optimizer)

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        own = clipped(gradients, self.largest_norm, self.beside) if self.largest_norm else gradients
        vectors = mean_over_ranks({name: gradient for name, gradient in own.items() if gradient.ndim < 2}, run.group)
        ratio, messages = ratio_at(run.progress, self.ratio, self.warmup), []
        for name, gradient in own.items():
            velocity = self.velocities.setdefault(name, torch.zeros(gradient.shape, device=gradient.device))
            if name in vectors:
                velocity.mul_(self.momentum).add_(vectors[name])
            else:
                pending = self.errors.setdefault(name, torch.zeros(gradient.shape, device=gradient.device))
                messages.append(corrected(gradient, velocity, pending, self.momentum, ratio))
        means = {
            name: self.velocities[name].clone() if name in vectors else torch.zeros_like(own[name]) for name in own
        }
        matrices = [mean for name, mean in means.items() if name not in vectors]
        for theirs in gathered(messages, run.group):
            for mean, (values, indices) in zip(matrices, theirs, strict=True):
                mean += scattered(values / self.ranks, indices, mean.shape)
        return means

    def state(self) -> dict[str, Any]:
        return super().state() | {"velocities": dict(self.velocities)}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        super().restore(state, run)
        self.velocities = dict(state["velocities"])
