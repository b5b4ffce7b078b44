"""FlashAttention (Dao et al., NeurIPS 2022): exact attention by tiles, without the N x N matrix in memory.

Uses the fused kernel behind torch's scaled_dot_product_attention. Only the ``classic`` recipe leaves attention unfused;
``modern`` and ``compiled`` have the kernel already, and there the entry changes nothing, which is the result.
``tiles.py`` beside it is the algorithm itself, with every memory access counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from suite.contract.recipe import Recipe
from suite.contract.technique import Technique


@dataclass
class FlashAttention(Technique):
    """Turns fused attention on."""

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, fused_attention=True)
