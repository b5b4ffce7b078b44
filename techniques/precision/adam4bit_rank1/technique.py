"""Implements 4-bit optimizer states: AdamW whose second moment has a scale of rank one and no zero.

Li, Chen & Zhu, "Memory Efficient Optimizers with 4-bit States" (NeurIPS 2023, arXiv 2309.01507), sections 3 and 4:

    m   4-bit signed dynamic map, a scale for 128 elements        nearest value
    v   (c + 1) / 16 min(r_i, c_j),  c = 0 ... 15                 r, c: the largest of each row and of each column

Outliers of v lie in rows and columns, which blocks cut across; and a v that became 0 would make the step explode, so
that the map of v has no zero. Vectors, small tensors and embeddings keep 32-bit moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import ParameterGroups, Technique
from techniques.precision.adam4bit_rank1.optimizer import AdamW4bit
from techniques.precision.shared.low_bit import NOTHING, check_smallest, embeddings_apart


@dataclass
class Adam4bit(Technique):
    """Tensors of fewer than ``smallest`` elements and, with ``keep_embeddings``, the embedding tables keep 32-bit
    moments."""

    smallest: int = 4097
    keep_embeddings: bool = True

    zero_strength: ClassVar[Mapping[str, Any]] = {"smallest": NOTHING}

    def __post_init__(self) -> None:
        check_smallest(self.smallest)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        return embeddings_apart(groups, run.anatomy) if self.keep_embeddings and not self.is_reference else groups

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> AdamW4bit:
        return AdamW4bit(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            smallest=self.smallest,
            fused=recipe.fused_optimizer,
        )
