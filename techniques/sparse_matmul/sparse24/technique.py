"""Implements 2:4 sparsity: train, keep two of each four weights of a row once, and train again from there with the same
recipe.

Mishra, Albericio Latorre, Pool, Stosic, Stosic, Venkatesh, Yu & Micikevicius, "Accelerating Sparse Deep Neural
Networks" (2021, arXiv 2104.08378), section 4:

    1  train the dense network
    2  of each 4 consecutive weights along a product's sum set the 2 smallest |w| to 0
    3  repeat the training of step 1 from the weights of step 2: same rates, same steps, fresh optimizer, fixed mask

Step 1 is set-up, and step 3 the run itself. The attention and MLP matrices of the blocks are pruned, embeddings and
head are not. ``products.py`` multiplies by sparse tensor cores where there are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import Unavailable
from suite.model.anatomy import anatomy, in_features, is_transposed, out_features, weight_matrix
from techniques.shared.sparse.masks import Masked, Ticket, prunable
from techniques.shared.sparse.n_of_m import largest_of_each
from techniques.sparse_matmul.sparse24.products import SemiStructuredLinear, unfit

GROUP, KEPT = 4, 2


def by_rows(weight: Tensor) -> Tensor:
    """Returns bool: of each 4 consecutive entries of a row of ``weight`` [out, in] the 2 largest by size."""
    return largest_of_each(weight.abs(), KEPT, GROUP)


@cache
def patterns() -> Tensor:
    """Returns the 90 masks [90, 16], float32, of a 4 x 4 tile with two entries in each row and column."""
    rows = [[float(i in pair) for i in range(GROUP)] for pair in combinations(range(GROUP), KEPT)]
    tiles = [four for four in product(rows, repeat=GROUP) if all(sum(column) == KEPT for column in zip(*four))]
    return torch.tensor(tiles).flatten(1)


def by_tiles(weight: Tensor) -> Tensor:
    """Returns bool: of each 4 x 4 tile of ``weight`` [out, in] the mask of largest |w| that is 2:4 along rows and
    columns, so that the transpose is 2:4, too."""
    out, features = weight.shape
    tiles = weight.abs().float().view(out // GROUP, GROUP, features // GROUP, GROUP).transpose(1, 2)
    best = (tiles.flatten(2) @ patterns().to(weight.device).T).argmax(-1)
    mask = patterns().to(weight.device).bool()[best].view(out // GROUP, features // GROUP, GROUP, GROUP)
    return mask.transpose(1, 2).reshape(out, features)


@dataclass
class Sparse24(Masked):
    """Keeps the ``pattern``: 2:4 along ``rows``, as the forward product needs; in ``tiles``, as backward needs besides;
    or ``dense``, without step 1. ``execution`` semi_structured multiplies by sparse tensor cores."""

    pattern: Literal["rows", "tiles", "dense"] = "rows"
    execution: Literal["masked", "semi_structured"] = "masked"
    zero_strength: ClassVar[Mapping[str, Any]] = {"pattern": "dense"}

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        for path, layer in prunable(model):
            self.check(path, layer, run.device)
        scout = run.scout(Stack({}), seed=run.seed, steps=run.recipe.steps)
        scout.train(scout.recipe.steps)
        layers = [layer for _, layer in prunable(scout.model)]
        start = {name: parameter.detach().clone() for name, parameter in scout.model.named_parameters()}
        model = Ticket(masks=[self.mask(layer) for layer in layers], start=start).model(model, run)
        if self.execution == "semi_structured":
            own = anatomy(model)
            for path, layer in prunable(model):
                own.replace(path, SemiStructuredLinear(layer))
        return model

    def check(self, path: str, layer: nn.Module, device: torch.device) -> None:
        """Raises ValueError or Unavailable where a layer's weight cannot be 2:4, or not be multiplied so."""
        sizes = {"inputs": in_features(layer)}
        if self.pattern == "tiles":
            sizes["outputs"] = out_features(layer)
        for name, size in sizes.items():
            if size % GROUP:
                raise ValueError(f"{size} {name} of {path} are no whole groups of {GROUP}: take a width that is")
        if self.execution == "semi_structured" and (why := unfit(layer, device)):
            raise Unavailable(f"{path}: {why}")

    @torch.no_grad()
    def mask(self, layer: nn.Module) -> Tensor:
        """Computes the mask in the layer's own layout."""
        mask = (by_tiles if self.pattern == "tiles" else by_rows)(weight_matrix(layer))
        return mask.T.contiguous() if is_transposed(layer) else mask
