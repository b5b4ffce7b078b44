"""Implements T-Fixup: an initialisation under which Adam's first steps change a Transformer equally at any depth,
without norms.

Huang, Perez, Ba & Volkovs, "Improving Transformer Optimization Through Better Initialization" (ICML 2020, PMLR 119),
section 3.2. Of N blocks in a stack:

* Xavier initialisation of the blocks' matrices;
* those of values, of attentions' outputs and of MLPs times 0.67 N^(-1/4) in an encoder, (9 N)^(-1/4) in a decoder;
* the embedding times (9 N)^(-1/4);
* no layer norm and no warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import PROJECTION_NAMES, Anatomy, Block, anatomy, weight_matrix
from suite.model.inputs import scale_beginnings
from suite.model.projections import Numbers, Role, Rows, projection_rows
from techniques.shared.residual import remove_norms


def branch_factor(depth: int, crossing: bool) -> float:
    """Returns the factor of the matrices in ``depth`` blocks, a decoder's where these attend to an encoder, too
    (``crossing``)."""
    return (9 * depth) ** -0.25 if crossing else 0.67 * depth**-0.25


def embedding_factor(depth: int) -> float:
    """Returns the factor of what the residual stream of ``depth`` blocks begins with."""
    return (9 * depth) ** -0.25


@torch.no_grad()
def initialise(parts: Anatomy, projections: Sequence[Mapping[Role, Rows]], generator: torch.Generator) -> None:
    """Draws the blocks' matrices; :func:`suite.model.projections.projection_rows` has each block's ``projections``."""
    blocks = [(stack.depth, block) for stack in parts.stacks for block in stack.blocks]
    for (depth, block), rows in zip(blocks, projections, strict=True):
        for weight, numbers, scaled in matrices(block, rows):
            drawn = nn.init.xavier_uniform_(torch.empty(len(numbers), weight.shape[1]), generator=generator)
            factor = branch_factor(depth, crossing=len(block.branches) > 2) if scaled else 1.0
            weight[list(numbers)] = (factor * drawn).to(weight)


def matrices(block: Block, projections: Mapping[Role, Rows]) -> Iterator[tuple[Tensor, Numbers, bool]]:
    """Yields the block's weights [out, in], the rows of each matrix in them, and whether the method scales it.

    Raises ValueError where that cannot be told.
    """
    if len(block.mlp_linears) < 2 or block.mlp_output is None:
        raise ValueError(f"tfixup scales the matrices of the MLP in {block.path}, and finds no linear layers there")
    for role, projection in projections.items():
        yield weight_matrix(projection.layer.module), projection.rows, role == "value"
    projecting = {projection.layer.path for projection in projections.values()}
    for part in block.linears:
        if part.path not in projecting:
            words = set(re.split(r"[._]", part.path.lower()))
            weight = weight_matrix(part.module)
            is_value = bool(PROJECTION_NAMES["value"] & words)  # of a cross-attention
            yield weight, range(len(weight)), is_value or part in (*block.mlp_linears, *block.branches)


@dataclass
class TFixup(Technique):
    """Removes all norms of the residual streams and, unless ``warmup``, the recipe's warm-up; initialises anew."""

    warmup: bool = False

    drawn: Act = field(init=False, repr=False, default_factory=Act)

    def recipe(self, recipe: Recipe) -> Recipe:
        return recipe if self.warmup else replace(recipe, warmup_fraction=0.0)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts, forward = anatomy(model), partial(run.trial, model)
        remove_norms(parts)
        initialise(parts, projection_rows(model, parts.every_block, forward), run.generator)
        scale_beginnings(model, parts.stacks, [embedding_factor(stack.depth) for stack in parts.stacks], forward)
        self.drawn()
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"draws the matrices": self.drawn}
