"""Puts residual streams without norms, x <- x + a F(x), in the place of a model's pre-norm or post-norm blocks.

A pre-norm block computes x + F(norm(x)), and one norm follows the last; a post-norm block computes norm(x + F(x)), and
one norm stands before the first. Without the norms both are x + F(x), and what scales a branch is a parameter at its
end (:func:`suite.model.branches.branch_ends` says where that is). Norms of single heads' queries and keys are not of
the stream, and stay.

A norm also brings the embedding to unit size, whatever its tables begin with. Without one this takes the factor sqrt(d)
of Vaswani et al. (arXiv 1706.03762, section 3.4), which the Transformers without norms of Fixup's, ReZero's and
T-Fixup's authors have, too. It is a constant: a head that shares a table's weights sees them as they are.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from suite.model.anatomy import Anatomy, AroundLinear, Part
from techniques.shared.scaled_sum import scaled


def norms(parts: Anatomy) -> tuple[Part, ...]:
    """Finds all norms over the width of a residual stream: in the blocks, and before and behind them."""
    widths = {(stack.width,) for stack in parts.stacks}
    inside = tuple(norm for block in parts.every_block for norm in block.norms)
    blocks = tuple(f"{block.path}." for block in parts.every_block)
    outside = (
        Part(path, module)
        for path, module in parts.model.named_modules()
        if "norm" in type(module).__name__.lower()
        and not path.startswith(blocks)
        and getattr(getattr(module, "weight", None), "shape", None) in widths
    )
    return (*inside, *outside)


def remove_norms(parts: Anatomy) -> None:
    """Puts the identity in the place of all :func:`norms`, and enlarges the tables of embeddings to unit size."""
    for path, _ in norms(parts):
        parts.replace(path, nn.Identity())
    for path, table in parts.embeddings:
        parts.replace(path, EnlargedTable(table))


class EnlargedTable(AroundLinear):
    """Multiplies a table of embeddings by ``factor``: sqrt(width), or less where that would make it larger than unit
    size.

    It stands in for a linear layer, too: the one that a lookup is of one-hot vectors.
    """

    factor: Tensor

    def __init__(self, table: nn.Module) -> None:
        super().__init__(table)
        weight: Tensor = table.weight.detach()  # type: ignore[operator]
        self.register_buffer("factor", weight.std().reciprocal().clamp(max=math.sqrt(weight.shape[1])))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        looked_up = self.linear(*args, **kwargs)
        return looked_up * self.factor.to(looked_up.dtype)


class ScaledBranch(AroundLinear):
    """Multiplies the end of a branch (its last linear layer, or a mixture of experts) by ``scale`` [1], bias included.

    Several branches may have one ``scale``.
    """

    def __init__(self, end: nn.Module, scale: nn.Parameter) -> None:
        super().__init__(end)
        self.scale = scale

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        product: Tensor = scaled(self.linear(*args, **kwargs), self.scale)
        return product


def scaled_branches(model: nn.Module) -> dict[str, ScaledBranch]:
    """Returns the scaled ends of branches by name."""
    return {path: module for path, module in model.named_modules() if isinstance(module, ScaledBranch)}
