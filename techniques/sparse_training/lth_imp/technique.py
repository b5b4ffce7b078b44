"""Finds lottery tickets by iterative magnitude pruning: train, prune the smallest weights, rewind the others, and
again.

Frankle & Carbin, "The Lottery Ticket Hypothesis: Finding Sparse, Trainable Neural Networks" (ICLR 2019, arXiv
1803.03635), section 1, "iterative pruning". With a mask m of ones to begin with, ``rounds`` times:

    1  train f(x; m * theta_0) for all steps, which arrives at theta
    2  leave out of m the share ``rate`` of its weights with the smallest |theta|, in all layers at once
    3  reset what is left to theta_0

The winning ticket, f(x; m * theta_0), is then trained as the run itself. The other trainings are its set-up. The
paper's controls (section 1, figure 1) are what wins if it is not the ticket: the mask with weights drawn anew,
f(x; m * theta_0'), and theta_0 with as many connections of each layer at random places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.shared.sparse.masks import Masked, Ticket, masked, prunable
from techniques.shared.sparse.saliency import shuffled_mask
from techniques.shared.sparse.topology import check_connected, highest

REINITIALISED = 8  # of the seed: weights that have nothing to do with the run's own


def pruned(weights: Sequence[Tensor], masks: Sequence[Tensor], rate: float) -> list[Tensor]:
    """Returns the masks without the share ``rate`` of their ones, rounded up, at the smallest |weights| of all
    layers."""
    left = sum(int(mask.sum()) for mask in masks)
    sizes = [weight.abs().masked_fill(~mask, -1.0) for weight, mask in zip(weights, masks, strict=True)]
    return highest(sizes, left - math.ceil(rate * left))


@dataclass
class LotteryTicket(Masked):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    ``rewind``: the share of a training's steps after which theta_k of the first one takes theta_0's place.
    ``control``: what is trained in the ticket's place, its connections with weights drawn anew (``reinitialised``), or
    its weights with as many connections of each layer at random places (``shuffled``).
    """

    rounds: int = 3
    rate: float = 0.2
    rewind: float = 0.0
    control: Literal["none", "reinitialised", "shuffled"] = "none"

    zero_strength: ClassVar[Mapping[str, Any]] = {"rounds": 0}

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise ValueError(f"rounds of training and pruning are 0 or more, not {self.rounds}")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate is the share of the connections that a round prunes, in (0, 1), not {self.rate}")
        if not 0 <= self.rewind < 1:
            raise ValueError(f"rewind is a share of the steps, in [0, 1), not {self.rewind}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        layers = prunable(model)
        masks = [torch.ones_like(layer.module.weight, dtype=torch.bool) for layer in layers]  # type: ignore[arg-type]
        start: dict[str, Tensor] | None = None  # theta_k, where it is not theta_0
        for _ in range(self.rounds):
            ticket = Stack({"ticket": Ticket(masks=masks, start=start)})
            scout = run.scout(ticket, seed=run.seed, steps=run.recipe.steps)
            rewound = round(self.rewind * scout.recipe.steps) if start is None else 0
            scout.train(rewound)
            if rewound:
                start = {name: parameter.detach().clone() for name, parameter in scout.model.named_parameters()}
            scout.train(scout.recipe.steps - rewound)
            masks = pruned([weight.detach() for weight, _ in masked(scout.anatomy)], masks, self.rate)
        check_connected({layer.path: mask for layer, mask in zip(layers, masks, strict=True)})
        if self.control == "reinitialised":
            other = run.scout(Stack({}), seed=mixed_seed(run.seed, REINITIALISED), steps=run.recipe.steps).model
            start = {name: parameter.detach() for name, parameter in other.named_parameters()}
        elif self.control == "shuffled":
            masks = [shuffled_mask(mask, run.generator) for mask in masks]
        return Ticket(masks=masks, start=start).model(model, run)
