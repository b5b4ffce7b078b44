"""Implements mixed precision in bfloat16: matrix products of bfloat16 numbers, sums and master weights in float32, no
loss scale.

Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training" (2019, arXiv 1905.12322), section 3: bfloat16 has the
exponent of float32, so that gradients need no scaling, and 8 bits of significand, so that the weights which updates
are added to stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique


@dataclass
class BFloat16(Technique):
    """Runs the recipe under bfloat16 autocast, in training and in evaluation."""

    takes: ClassVar[str] = "says in which precision the passes compute"

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, precision="bf16")

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {part.path: part.module for part in run.anatomy.linears}
