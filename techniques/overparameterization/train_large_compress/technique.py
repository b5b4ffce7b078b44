"""Implements Train large, then compress: a wider model, stopped early, pruned by magnitude and quantised.

Li, Wallace, Shen, Lin, Keutzer, Klein & Gonzalez, "Train Large, Then Compress: Rethinking Model Size for Efficient
Training and Inference of Transformers" (ICML 2020, arXiv 2002.11794): larger models reach a loss in fewer steps, and
even in less time; and they lose less by compression, so that at equal bytes a large compressed model beats a small one.

Bytes are those of the blocks' matrices: weights that are not 0, times their bits. Pruning is iterative: in the last
``prune`` of the steps ``rounds`` times, with training in between. Quantisation is that of the evaluated model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy, weight_matrix
from techniques.overparameterization.shared.width import widened


def largest(weights: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
    """Returns masks by name, bool, that are False at ``sparsity`` of all entries together, rounded to whole: the
    smallest."""
    sizes = torch.cat([weight.abs().flatten() for weight in weights.values()])
    mask = torch.ones_like(sizes, dtype=torch.bool)
    mask[sizes.argsort(stable=True)[: round(sparsity * len(sizes))]] = False
    parts = mask.split([weight.numel() for weight in weights.values()])
    return {name: part.view_as(weight) for (name, weight), part in zip(weights.items(), parts, strict=True)}


def quantised(weight: Tensor, bits: int) -> Tensor:
    """Rounds to the nearest of 2^bits - 1 levels around 0, equally far apart, the largest at the largest entry of each
    row."""
    steps = 2 ** (bits - 1) - 1
    unit = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / steps
    return (weight / unit).round() * unit


def sparsity_after(rounds_done: int, rounds: int, sparsity: float) -> float:
    """Returns the sparsity where each round keeps the same share of what the one before left."""
    return 1 - (1 - sparsity) ** (rounds_done / rounds)


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the weights of all linear layers in the blocks, by name."""
    linears = {id(part.module.weight) for part in anatomy(model).linears}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in linears}


@dataclass
class TrainLargeCompress(Technique):
    """Trains ``width`` times as many neurons in every MLP, for ``stop`` of the reference's steps; then ``sparsity`` of
    the blocks' weights are 0, and the others have ``bits`` bits (32: as they are)."""

    width: int = 4
    stop: float = 1 / 3
    sparsity: float = 0.5
    bits: int = 8
    prune: float = 0.3
    rounds: int = 5
    zero_strength: ClassVar[Mapping[str, Any]] = {"width": 1, "stop": 1.0, "sparsity": 0.0, "bits": 32}

    stopped: Act = field(init=False, repr=False, default_factory=Act)
    compressed: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    masks: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    done: int = field(init=False, default=0)
    reference_size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width is a whole multiple of the baseline's neurons, 1 or more, not {self.width}")
        if not 0 < self.stop <= 1:
            raise ValueError(f"stop is a share of the reference's steps, in (0, 1], not {self.stop}")
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is the share of zeros, in [0, 1), not {self.sparsity}")
        if not (2 <= self.bits <= 16 or self.bits == 32):
            raise ValueError(f"bits of a weight are 2 to 16, or 32 for no quantisation, not {self.bits}")
        if not (0 < self.prune <= 1 and self.rounds >= 1):
            raise ValueError(f"prune is a share of the steps and rounds 1 or more, not {self.prune} and {self.rounds}")

    def recipe(self, recipe: Recipe) -> Recipe:
        if self.stop < 1:
            self.stopped()
        return replace(recipe, steps=max(1, round(self.stop * recipe.steps)))

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        self.reference_size = sum(matrix.numel() for matrix in matrices(model).values())
        return widened(model, run, self.width)

    @torch.no_grad()
    def after_backward(self, run: Run) -> None:
        if self.masks:
            for name, weight in matrices(run.model).items():
                if weight.grad is not None:
                    weight.grad.mul_(self.masks[name])

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        planned = self.rounds_until(run.step, run.recipe.steps) if self.sparsity else 0
        weights = matrices(run.model) if planned else {}
        if planned > self.done:
            self.masks = largest(weights, sparsity_after(planned, self.rounds, self.sparsity))
            self.done = planned
            self.compressed()
        for name, weight in weights.items():
            weight.mul_(self.masks[name])  # an optimizer may move a weight without a gradient

    def rounds_until(self, step: int, steps: int) -> int:
        """Rounds of pruning that are due after ``step`` of the run's steps: the last leaves time to recover."""
        starts = [(1 - self.prune + self.prune * number / self.rounds) * steps for number in range(self.rounds)]
        return sum(step >= max(1, round(start)) for start in starts)

    @torch.no_grad()
    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        if self.bits == 32:
            return model
        small = copy.deepcopy(model)
        for part in anatomy(small).linears:
            matrix = weight_matrix(part.module)
            matrix.copy_(quantised(matrix, self.bits))
        self.compressed()
        return small

    def sites(self, run: Run) -> Mapping[str, Site]:
        sites: dict[str, Site] = dict(matrices(run.model))
        if self.stop < 1:
            sites["stops early"] = self.stopped
        if self.sparsity or self.bits < 32:
            sites["compresses"] = self.compressed
        return sites

    def probes(self, run: Run) -> Mapping[str, float]:
        """Computes ``bytes``: of the compressed matrices of the blocks, over those of the reference in float32."""
        nonzeros = sum(int(matrix.count_nonzero()) for matrix in matrices(run.model).values())
        return {"bytes": nonzeros * self.bits / (32 * self.reference_size)}

    def state(self) -> dict[str, Any]:
        return {"masks": self.masks, "done": self.done}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.masks, self.done = state["masks"], state["done"]
