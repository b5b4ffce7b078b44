"""LayerScale: each residual branch is multiplied by a learnable diagonal matrix that starts near zero.

Touvron, Cord, Sablayrolles, Synnaeve & Jegou, "Going deeper with Image Transformers" (CaiT, ICCV 2021, arXiv
2103.17239), equation 4:

    x' = x + diag(l_1) SA(LN(x))        x'' = x' + diag(l_2) FFN(LN(x'))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.contract.run import Run
from suite.contract.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, out_features


def initial_scale(depth: int) -> float:
    """Section 2.2: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 for deeper networks."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


class LayerScale(AroundLinear):
    """A branch's last layer with its output, bias included, scaled by ``scale`` [out_features]."""

    def __init__(self, linear: nn.Module, initial: float) -> None:
        super().__init__(linear)
        like: Tensor = linear.weight  # type: ignore[assignment]
        self.scale = nn.Parameter(torch.full((out_features(linear),), initial, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.linear(x)
        return branch * self.scale.to(branch.dtype)  # under autocast the branch stays in its low precision


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
        branches = [
            (part, initial_scale(stack.depth) if self.initial is None else self.initial)
            for stack in parts.stacks
            for block in stack.blocks
            for part in block.branches
        ]
        for part, initial in branches:
            parts.replace(part.path, LayerScale(part.module, initial))
        return model

    def probes(self, run: Run) -> Mapping[str, float]:
        added = sum(module.scale.numel() for module in run.model.modules() if isinstance(module, LayerScale))
        return {"added_per_block_and_width": added / sum(stack.depth * stack.width for stack in run.anatomy.stacks)}
