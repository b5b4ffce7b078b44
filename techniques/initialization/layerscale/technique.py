"""LayerScale: each residual branch is multiplied by a learnable diagonal matrix that starts near zero.

Touvron, Cord, Sablayrolles, Synnaeve & Jegou, "Going deeper with Image Transformers" (CaiT, ICCV 2021, arXiv
2103.17239), equation 4:

    x' = x + diag(l_1) SA(LN(x))        x'' = x' + diag(l_2) FFN(LN(x'))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, out_features
from suite.model.branches import branch_ends
from techniques.shared.scaled_sum import scaled


def initial_scale(depth: int) -> float:
    """Follows section 2.2: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 for deeper networks."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


class LayerScale(AroundLinear):
    """Multiplies the end of a branch (its last linear layer, or a mixture of experts) by ``scale`` [width], bias
    included.

    ``width`` is that of the branch's output, by default the linear layer's.
    """

    def __init__(self, end: nn.Module, initial: float, width: int | None = None) -> None:
        super().__init__(end)
        width = width or out_features(end)
        like = next(end.parameters())
        self.scale = nn.Parameter(torch.full((width,), initial, device=like.device))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        product: Tensor = scaled(self.linear(*args, **kwargs), self.scale)
        return product


@dataclass
class LayerScaleTechnique(Technique):
    """Scales the attention and MLP branches of every block; ``initial`` None takes the paper's value for the depth.

    One-dimensional parameters get no weight decay from the recipe, so the scales have none, as in the paper's code.
    """

    initial: float | None = None

    def __post_init__(self) -> None:
        if self.initial is not None and not self.initial > 0:
            raise ValueError(f"initial must be positive (a scale of 0 would train only itself), not {self.initial}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        ends = iter(branch_ends(model, parts.every_block, partial(run.trial, model)))
        for stack in parts.stacks:
            initial = initial_scale(stack.depth) if self.initial is None else self.initial
            for block in stack.blocks:
                for end in next(ends):
                    parts.replace(end.path, LayerScale(end.module, initial, block.width))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {f"{path}.scale": scaled_branch.scale for path, scaled_branch in scaled_branches(run.model).items()}


def scaled_branches(model: nn.Module) -> dict[str, LayerScale]:
    """Returns the branches' ends by name."""
    return {path: module for path, module in model.named_modules() if isinstance(module, LayerScale)}
