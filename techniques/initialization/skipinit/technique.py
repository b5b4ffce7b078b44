"""SkipInit: each residual branch ends in a learnable number that starts at 0, in place of normalisation.

De & Smith, "Batch Normalization Biases Residual Blocks Towards the Identity Function in Deep Networks" (NeurIPS 2020,
arXiv 2002.10444), section 4: normalisation shrinks the branches of a network of depth d by about sqrt(d) at the start,
so that signals skip most of them; the number does so without it:

    x_{l+1} = x_l + a_l F_l(x_l),    a_l = 0 (or at most 1 / sqrt(d))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, Part, anatomy
from suite.model.branches import branch_ends
from techniques.shared.residual import ScaledBranch, remove_norms, scaled_branches


def add_multipliers(parts: Anatomy, ends: Sequence[Sequence[Part]], initial: float) -> None:
    """Multiplies each branch that ends at one of ``ends`` by a number of its own."""
    for end in (end for branches in ends for end in branches):
        device = next(end.module.parameters()).device
        parts.replace(end.path, ScaledBranch(end.module, nn.Parameter(torch.full((1,), initial, device=device))))


@dataclass
class SkipInit(Technique):
    """Removes all norms of the residual streams; a branch's multiplier starts at ``initial``, in [0, 1].

    One-dimensional parameters get no weight decay from the recipe, so the multipliers have none.
    """

    initial: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= 1:
            raise ValueError(
                f"initial multiplies the branches at the start: 0, or at most 1 / sqrt(branches), not {self.initial}"
            )

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        remove_norms(parts)
        add_multipliers(parts, branch_ends(model, parts.every_block, partial(run.trial, model)), self.initial)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {f"{path}.scale": scaled_branch.scale for path, scaled_branch in scaled_branches(run.model).items()}
