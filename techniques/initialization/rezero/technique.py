"""ReZero: blocks begin as the identity, x <- x + a F(x) with a = 0, and need neither norms nor a warm-up.

Bachlechner, Majumder, Mao, Cottrell & McAuley, "ReZero is All You Need: Fast Convergence at Large Depth" (UAI 2021,
arXiv 2003.04887), equation 1 and section 5: one residual weight a for each layer, which its attention and its MLP
share:

    x' = x + a SA(x)        x'' = x' + a FFN(x')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, Part, anatomy
from suite.model.branches import branch_ends
from techniques.shared.residual import ScaledBranch, remove_norms, scaled_branches


def add_residual_weights(parts: Anatomy, ends: Sequence[Sequence[Part]]) -> None:
    """Multiplies the branches that end at ``ends`` (of each block) by the block's one weight, which starts at 0."""
    for branches in ends:
        weight = nn.Parameter(torch.zeros(1, device=next(branches[0].module.parameters()).device))
        for end in branches:
            parts.replace(end.path, ScaledBranch(end.module, weight))


@dataclass
class ReZero(Technique):
    """Removes all norms of the residual streams and, unless ``warmup``, the recipe's warm-up.

    One-dimensional parameters get no weight decay from the recipe, so the residual weights have none.
    """

    warmup: bool = False

    def recipe(self, recipe: Recipe) -> Recipe:
        return recipe if self.warmup else replace(recipe, warmup_fraction=0.0)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        remove_norms(parts)
        add_residual_weights(parts, branch_ends(model, parts.every_block, partial(run.trial, model)))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {f"{path}.scale": scaled_branch.scale for path, scaled_branch in scaled_branches(run.model).items()}
