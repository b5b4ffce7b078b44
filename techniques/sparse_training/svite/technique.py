"""Implements SViTE: vision Transformers that are sparse from start to end and move their connections while they train.

Chen, Cheng, Gan, Yuan, Zhang & Wang, "Chasing Sparsity in Vision Transformers: An End-to-End Exploration" (NeurIPS
2021, arXiv 2106.04533), section 3.2, algorithm 1. Every ``interval`` steps, after the update of the weights, each
layer that is not dense drops the share r of its connections with the smallest weights, and grows as many where the
dense gradient of that step is largest:

    r(t) = r_end + (r_0 - r_end) (1 + cos(pi t / T)) / 2          over all T steps

The structured form, S2ViTE, moves whole heads and neurons (:mod:`techniques.sparse_training.svite.structured`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from techniques.shared.sparse.masks import Masked, attach, check_sparsity, density, masked, prunable, rewire
from techniques.shared.sparse.topology import counted_flops, erk_densities, moved_topology, random_mask
from techniques.sparse_training.svite.structured import Structure


def death_rate(step: int, steps: int, first: float, last: float) -> float:
    """Computes r(t) after ``step`` of ``steps`` steps: half a cosine from ``first`` to ``last``."""
    return last + (first - last) * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass
class SViTE(Masked):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    ``interval`` 0 chooses a hundredth of the run, as 15,000 of DeiT-Small's 1.5 million steps, but 2 steps at least.
    ``structured`` masks whole heads and neurons, of each attention and MLP the share ``sparsity``; the model that is
    evaluated is without them.
    """

    sparsity: float = 0.5
    death: float = 0.5
    last_death: float = 0.005
    interval: int = 0
    structured: bool = False
    structure: Structure | None = field(init=False, repr=False, default=None)
    explored: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    dense: dict[nn.Parameter, Tensor] = field(init=False, repr=False, default_factory=dict)  # gradients

    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0}

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        if not 0 <= self.last_death <= self.death <= 1:
            raise ValueError(
                "death and last_death are the shares of connections that move at first and at last: 0 <= last_death <= "
                f"death <= 1, not {self.death} and {self.last_death}"
            )
        if self.interval < 0:
            raise ValueError(f"interval is 1 step or more, or 0 to choose it by the run's length, not {self.interval}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if self.structured:
            self.structure = Structure.on(model, run, self.sparsity)
            return model
        layers: list[Any] = [part.module for part in prunable(model)]
        shapes = [tuple(layer.weight.shape) for layer in layers]
        for layer, share in zip(layers, erk_densities(shapes, self.sparsity), strict=True):
            attach(layer, random_mask(layer.weight.shape, share, run.generator))
        return model

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.structure is None or not self.explores_after(run.step + 1, run.recipe.steps):
            return nullcontext()
        return self.structure.watched(run.model)

    def after_backward(self, run: Run) -> bool | None:
        if not self.is_reference and self.explores_after(run.step + 1, run.recipe.steps):
            self.dense = {weight: weight.grad.clone() for weight, _ in masked(run.anatomy) if weight.grad is not None}
        return super().after_backward(run)

    def mask_gradients(self, run: Run) -> None:
        super().mask_gradients(run)
        if self.structure:
            self.structure.silence(run.model)

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        super().after_step(run)
        if self.structure:
            self.structure.silence(run.model)
        if self.is_reference or not self.explores_after(run.step, run.recipe.steps):
            return
        share = death_rate(run.step, run.recipe.steps, self.death, self.last_death)
        if self.structure:
            self.structure.move(run, self.dense, share)
        else:
            self.move_connections(run, share)
        self.dense = {}
        self.explored()

    def move_connections(self, run: Run, share: float) -> None:
        """Drops that ``share`` of each layer's connections, rounded up, and grows as many."""
        for weight, mask in masked(run.anatomy):
            if weight in self.dense and not mask.all():  # an expert without a token has no gradient
                count = math.ceil(share * int(mask.sum()))
                new = moved_topology(weight, self.dense[weight], mask, count)
                rewire(run, weight, mask, mask & new, new)

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        return self.structure.pruned(model) if self.structure else model

    def explores_after(self, step: int, steps: int) -> bool:
        """Tells whether connections move after that many steps; not after the last, when none would train any more."""
        return step < steps and step % (self.interval or max(2, steps // 100)) == 0

    def sites(self, run: Run) -> Mapping[str, Site]:
        scores = {"scores heads": self.structure.scored} if self.structure else {}
        return {**super().sites(run), "explores": self.explored, **scores}

    def probes(self, run: Run) -> dict[str, float]:
        """Computes ``relative_flops``: what the run's steps cost a kernel that computes nothing for zeros, over dense
        ones."""
        if self.is_reference:
            return {}
        explorations = sum(self.explores_after(step, run.recipe.steps) for step in range(1, run.step + 1))
        share = self.structure.share(run.model) if self.structure else density(run)
        return {"relative_flops": counted_flops(share, explorations, run.step - explorations)}
