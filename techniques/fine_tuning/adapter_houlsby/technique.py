"""Implements adapters (Houlsby et al., ICML 2019, arXiv 1902.00751, section 2.1): a bottleneck at the end of each
branch.

    adapter(h) = h + W2 gelu(W1 h + b1) + b2          x' = norm(x + adapter(branch(x)))

W1 [m, d] and W2 [d, m] start so near 0 that the adapter starts as the identity. The pre-trained weights are frozen;
adapters, layer norms and the output layer of the task are trained: 2 L (2 m d + m + d) numbers in the adapters of L
blocks of width d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy
from suite.model.branches import branch_ends
from techniques.fine_tuning.shared.frozen import freeze
from techniques.shared.residual import norms

DEVIATION = 1e-3  # of the authors' code; the paper calls anything below 1e-2 robust


def adapted(h: Tensor, down: Tensor, down_bias: Tensor, up: Tensor, up_bias: Tensor) -> Tensor:
    """Computes h + W2 gelu(W1 h + b1) + b2 for h [..., d], ``down`` W1 [m, d], ``up`` W2 [d, m]; gelu by tanh, as
    BERT's code has it."""
    return h + F.linear(F.gelu(F.linear(h, down, down_bias), approximate="tanh"), up, up_bias)


class Adapter(AroundLinear):
    """Puts an adapter behind the end of a branch (its last linear layer, or a mixture of experts) of ``width``."""

    def __init__(self, end: nn.Module, width: int, bottleneck: int, generator: torch.Generator) -> None:
        super().__init__(end)
        like = next(end.parameters())
        self.down = nn.Parameter(_near_zero(bottleneck, width, generator).to(like))
        self.down_bias = nn.Parameter(like.new_zeros(bottleneck))
        self.up = nn.Parameter(_near_zero(width, bottleneck, generator).to(like))
        self.up_bias = nn.Parameter(like.new_zeros(width))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return adapted(self.linear(*args, **kwargs), self.down, self.down_bias, self.up, self.up_bias)


def _near_zero(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draws normal numbers with DEVIATION, cut off at two of it: torch's own bounds are absolute."""
    empty, bound = torch.empty(rows, columns), 2 * DEVIATION
    return nn.init.trunc_normal_(empty, std=DEVIATION, a=-bound, b=bound, generator=generator)


def adapters(model: nn.Module) -> dict[str, Adapter]:
    """Returns the adapters by the name of the layer that each stands behind."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapter)}


@dataclass
class Adapters(Technique):
    """``bottleneck`` is m: 8, 64 or 256 in the paper, for the widths of BERT; the smallest suits the CPU sizes' widths
    of 32 to 96. ``learning_rate_ratio`` is over the baseline's full fine-tuning."""

    bottleneck: int = 8
    learning_rate_ratio: float = 10.0

    def __post_init__(self) -> None:
        if self.bottleneck < 1:
            raise ValueError(f"bottleneck, the adapters' inner width, must be at least 1, not {self.bottleneck}")
        if not self.learning_rate_ratio > 0:
            raise ValueError(
                f"learning_rate_ratio, over full fine-tuning's rate, must be positive, not {self.learning_rate_ratio}"
            )

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, learning_rate=recipe.learning_rate * self.learning_rate_ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        for stack in parts.stacks:
            if self.bottleneck >= stack.width:
                raise ValueError(
                    f"a bottleneck of {self.bottleneck} is none at {stack.path}, which is {stack.width} wide; "
                    f"set bottleneck to {stack.width // 4} or less"
                )
        ends = branch_ends(model, parts.every_block, partial(run.trial, model))
        freeze(parts)
        for norm in norms(parts):
            norm.module.requires_grad_(True)
        for block, branches in zip(parts.every_block, ends, strict=True):
            for end in branches:
                parts.replace(end.path, Adapter(end.module, block.width, self.bottleneck, run.generator))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        own = adapters(run.model)
        trained = [*own.items(), *norms(run.anatomy)]
        weights = {
            f"{path}.{name}": parameter
            for path, module in trained
            for name, parameter in module.named_parameters(recurse=False)
        }
        return {**own, **weights}
