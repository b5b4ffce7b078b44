"""Implements RigL (Evci et al., ICML 2020, algorithm 1): sparse from start to end, with a topology that follows the
gradient.

Every ``interval`` steps each layer drops its k smallest weights and grows the k connections with the largest gradient;
k anneals to zero at ``end_fraction`` of training. Masked weights are zeros in dense tensors, so this saves no time: a
probe counts the FLOPs that a sparse kernel would do. With masks of whole blocks, not the paper's, there is one
(``execution``): its gradients are dense in the steps that grow connections, and in no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from suite.loop.run import Run
from techniques.shared.sparse.block_sparse import BlockMasked, expanded, magnitudes
from techniques.shared.sparse.masks import attach, check_sparsity, density, masked, rewire
from techniques.shared.sparse.topology import (
    counted_flops,
    erk_densities,
    moved_topology,
    random_mask,
    uniform_densities,
)

Distribution = Literal["uniform", "erk"]


def drop_fraction(step: int, end: float, alpha: float) -> float:
    """Computes f_decay(t) = alpha / 2 (1 + cos(pi t / T_end)), equation 1."""
    return alpha / 2 * (1 + math.cos(math.pi * min(step / end, 1.0)))


@dataclass
class RigL(BlockMasked):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    ``interval`` 0 chooses the paper's 100 steps, or less in a short run: so many that about 25 updates fit, since with
    fewer the topology hardly moves. It is never below 2, because an update takes the place of a weight update. Blocks
    drop and grow as a whole, by the sums of their weights' and gradients' magnitudes.
    """

    sparsity: float = 0.8
    distribution: Distribution = "erk"
    alpha: float = 0.3
    end_fraction: float = 0.75
    interval: int = 0
    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0}

    topology_updates: int = field(init=False, default=0)
    weight_updates: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is the share of connections first moved, in [0, 1], not {self.alpha}")
        if not 0 <= self.end_fraction <= 1:
            raise ValueError(f"end_fraction is a share of the steps, in [0, 1], not {self.end_fraction}")
        if self.interval < 0 or self.interval == 1:
            raise ValueError(f"interval is 2 steps or more, or 0 to choose it by the run's length, not {self.interval}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        parts = self.layers(model)
        layers: list[Any] = [part.module for part in parts]
        densities = erk_densities if self.distribution == "erk" else uniform_densities
        shapes = [tuple(layer.weight.shape) for layer in layers]
        for layer, (n, m), share in zip(layers, shapes, densities(shapes, self.sparsity), strict=True):
            blocks = torch.Size([n // self.block, m // self.block])
            attach(layer, expanded(random_mask(blocks, share, run.generator), self.block))
        self.execute(model, parts, dense_gradient=self.moves(run))
        return model

    @torch.no_grad()
    def after_backward(self, run: Run) -> bool:
        if self.is_reference:
            return False
        moves = self.moves(run)
        if moves:
            for weight, mask in masked(run.anatomy):
                if weight.grad is None:  # of an expert without a token
                    continue
                blocks = mask[:: self.block, :: self.block]
                count = int(drop_fraction(run.step, self.end(run), self.alpha) * int(blocks.sum()))
                size, gradient = (magnitudes(tensor, self.block) for tensor in (weight, weight.grad))
                new = expanded(moved_topology(size, gradient, blocks, count), self.block)
                rewire(run, weight, mask, mask & new, new)
            self.topology_updates += 1
        else:
            self.weight_updates += 1
        self.mask_gradients(run)
        return moves  # the algorithm's "else": a step moves connections or weights, not both

    def after_step(self, run: Run) -> None:
        super().after_step(run)
        self.ask_for_dense_gradients(run, self.moves(run))

    def end(self, run: Run) -> float:
        """Returns T_end, in steps."""
        return self.end_fraction * run.recipe.steps

    def moves(self, run: Run) -> bool:
        """Tells whether the step that follows moves connections."""
        return run.step < self.end(run) and run.step % self.steps_between(run.recipe.steps) == 0

    def steps_between(self, steps: int) -> int:
        return self.interval or max(2, min(100, round(self.end_fraction * steps / 25)))

    def probes(self, run: Run) -> dict[str, float]:
        """Computes ``relative_flops``: what the run's steps cost a sparse kernel, over dense ones."""
        if not self.topology_updates + self.weight_updates:
            return {}
        return {"relative_flops": counted_flops(density(run), self.topology_updates, self.weight_updates)}

    def state(self) -> dict[str, Any]:
        return {"topology_updates": self.topology_updates, "weight_updates": self.weight_updates}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.topology_updates, self.weight_updates = state["topology_updates"], state["weight_updates"]
        self.ask_for_dense_gradients(run, self.moves(run))
