"""FlashAttention (Dao et al., NeurIPS 2022): exact attention by tiles, without the N x N matrix in memory.

Uses the fused kernel behind torch's scaled_dot_product_attention. Only the ``classic`` recipe leaves attention unfused;
``modern`` and ``compiled`` have the kernel already, and there the entry changes nothing, which is the result.
``tiles.py`` beside it is the algorithm itself, with every memory access counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, Unavailable
from suite.model.anatomy import anatomy
from suite.model.fused import unfused_attention


@dataclass
class FlashAttention(Technique):
    """Turns fused attention on, and makes sure that torch has a kernel for every block's."""

    fused: dict[str, Act] = field(init=False, repr=False, default_factory=dict)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, fused_attention=True)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        blocks = anatomy(model).every_block
        unfused = unfused_attention(model, blocks, partial(run.trial, model))
        if unfused:
            path, reason = next(iter(unfused.items()))
            raise Unavailable(
                f"the attention of {len(unfused)} of {len(blocks)} blocks would not be fused: in {path} {reason}"
            )
        self.fused = {block.path: Act() for block in blocks}
        for act in self.fused.values():
            act()
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return self.fused
