"""Depth without expressiveness: each linear layer is trained as a product of matrices, and is one matrix again after.

Arora, Cohen & Hazan, "On the Optimization of Deep Networks: Implicit Acceleration by Overparameterization" (ICML 2018,
arXiv 1802.06509). With W = W_N ... W_1 balanced (W_{j+1}^T W_{j+1} = W_j W_j^T), gradient flow on the factors moves W
by a preconditioned gradient (theorem 1):

    dW/dt = - sum over j = 1 .. N of [W W^T]^((j-1)/N) G [W^T W]^((N-j)/N)

The layer computes with the product, which costs width / tokens of what the layer costs, and not with one factor after
the other, which would cost twice as much as the layer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, innermost


def balanced_factors(weight: Tensor, depth: int) -> list[Tensor]:
    """Returns ``depth`` matrices whose product is ``weight`` [n, m], each neighbour balanced with the next; all between
    the first and the last are square, of the smaller of n and m. In float64, rounded at the end."""
    u, values, v = torch.linalg.svd(weight.detach().double(), full_matrices=False)
    root = values ** (1 / depth)
    middle = [root.diag() for _ in range(depth - 2)]
    return [tensor.to(weight.dtype) for tensor in (u * root, *middle, root[:, None] * v)]


def product(factors: Sequence[Tensor]) -> Tensor:
    """Computes the matrix that the factors are, from left to right."""
    return reduce(torch.matmul, factors)


class ProductLinear(AroundLinear):
    """Wraps a linear layer so that it computes with the product of ``factors`` in place of its weight, in the layout
    that it stores (a Conv1D's is in × out). Its bias stays."""

    def __init__(self, linear: nn.Module, depth: int) -> None:
        super().__init__(linear)
        weight: Any = linear.weight
        self.factors = nn.ParameterList(balanced_factors(weight, depth))
        linear.register_parameter("weight", None)

    @property
    def weight(self) -> Tensor:
        return product(list(self.factors))

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.linear, {"weight": self.weight}, (x,))

    def merged(self) -> nn.Module:
        """Returns the layer itself, with the product as its weight."""
        self.linear.weight = nn.Parameter(self.weight.detach())
        return self.linear


def merge(model: nn.Module) -> nn.Module:
    """Puts the layers themselves in the place of all products; returns ``model``."""
    for path, value in products(model).items():
        anatomy(model).replace(path, value.merged())
    return model


def products(model: nn.Module) -> dict[str, ProductLinear]:
    """Returns the factored layers by name."""
    return {path: module for path, module in model.named_modules() if isinstance(module, ProductLinear)}


@dataclass
class AroraDepth(Technique):
    """Trains the matrices of all blocks, where they are trained, as products of ``depth`` factors.

    The factors begin balanced, with the layer's own weight as their product, so that the model starts as the reference.
    """

    depth: int = 2
    zero_strength: ClassVar[Mapping[str, Any]] = {"depth": 1}

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth is the number of factors of a layer, 2 or more, or 1 for none, not {self.depth}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.depth == 1:
            return model
        parts = anatomy(model)
        for part in map(innermost, parts.linears):
            weight: Any = part.module.weight
            if weight.requires_grad:
                parts.replace(part.path, ProductLinear(part.module, self.depth))
        return model

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        return merge(copy.deepcopy(model)) if self.depth > 1 else model

    def sites(self, run: Run) -> Mapping[str, Site]:
        """Returns the factors. Raises ValueError where all layers are frozen."""
        factored = products(run.model).items()
        if not factored:
            raise ValueError("arora_depth factors matrices that train, and none of the blocks' does: leave it out")
        return {f"{path}.factors.{j}": factor for path, layer in factored for j, factor in enumerate(layer.factors)}
