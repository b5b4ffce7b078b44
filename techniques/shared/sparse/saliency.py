"""Prunes before training: each connection gets an importance from one mini-batch, and the highest in all layers stay.

For ``snip`` and ``grasp``, which differ in the importance alone. With ``shuffled``, each layer keeps as many
connections at random places: the control of Frankle et al., "Pruning Neural Networks at Initialization: Why Are We
Missing the Mark?" (ICLR 2021, arXiv 2009.08576). Where it ties, which of a layer's weights are kept did not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch, mixed_seed
from suite.loop.run import Run
from suite.model.calls import undisturbed
from techniques.shared.sparse.block_sparse import BlockMasked, expanded, summed
from techniques.shared.sparse.masks import attach, check_sparsity
from techniques.shared.sparse.topology import check_connected, highest


def shuffled_mask(mask: Tensor, generator: torch.Generator) -> Tensor:
    """Returns a mask with as many ones at uniformly random places."""
    order = torch.randperm(mask.numel(), generator=generator).to(mask.device)
    return mask.flatten()[order].view_as(mask)


@dataclass
class PrunedAtStart(BlockMasked):
    """Keeps the share 1 - ``sparsity`` of the weights of all blocks' matrices, chosen once, before the first step; in
    b x b blocks by the sums of their importances, if these are its ``block``."""

    sparsity: float = 0.8
    shuffled: bool = False

    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)

    def importance(self, model: nn.Module, weights: list[nn.Parameter], run: Run) -> list[Tensor]:
        """Computes the importance of each weight, in its tensor's shape: the highest stay. The model is in evaluation
        mode."""
        raise NotImplementedError

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        layers = self.layers(model)
        weights: list[nn.Parameter] = [layer.module.weight for layer in layers]  # type: ignore[misc]
        with undisturbed(model):
            importance = [summed(score, self.block) for score in self.importance(model.eval(), weights, run)]
        masks = highest(importance, round((1 - self.sparsity) * sum(score.numel() for score in importance)))
        check_connected({layer.path: mask for layer, mask in zip(layers, masks, strict=True)})
        for layer, mask in zip(layers, masks, strict=True):
            attach(layer.module, expanded(shuffled_mask(mask, run.generator) if self.shuffled else mask, self.block))
        self.execute(model, layers)
        return model


def first_batch(run: Run) -> Batch:
    """Returns the mini-batch that training begins with, on the run's device."""
    examples, _ = run.data.batch(mixed_seed(run.seed, 2), 0, run.recipe.batch_size)
    return {name: tensor.to(run.device) for name, tensor in examples.items()}
