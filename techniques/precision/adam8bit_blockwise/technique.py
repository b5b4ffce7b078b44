"""Implements 8-bit optimizer states by block-wise quantisation: AdamW whose two moments take a byte each.

Dettmers, Lewis, Shleifer & Zettlemoyer, "8-bit Optimizers via Block-wise Quantization" (ICLR 2022, arXiv 2110.02861),
section 2:

    m = b1 S_b Q[c] + (1 - b1) g        v = b2 S'_b Q'[c'] + (1 - b2) g^2        theta = AdamW's step along m, v
    S_b = max |m| over the block b      c = arg min_j |m / S_b - Q[j]|           likewise of v

Q is the dynamic map (`shared.dynamic_map`), signed for m, unsigned for v. An outlier spoils the precision of
its own block alone. Embeddings and tensors of fewer than 4096 elements keep 32-bit moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from torch.optim import Optimizer

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import ParameterGroups, Technique
from techniques.precision.adam8bit_blockwise.optimizer import AdamW8bit, check_block
from techniques.precision.shared.low_bit import NOTHING, check_smallest, embeddings_apart


@dataclass
class Adam8bit(Technique):
    """``block`` elements share a scale; tensors of fewer than ``smallest`` elements and, with ``keep_embeddings``, the
    embedding tables keep 32-bit moments. ``implementation=bitsandbytes`` has that package's optimizer in the place of
    ours, with its own blocks, of 256."""

    block: int = 2048
    smallest: int = 4096
    keep_embeddings: bool = True
    implementation: Literal["own", "bitsandbytes"] = "own"

    zero_strength: ClassVar[Mapping[str, Any]] = {"smallest": NOTHING}

    def __post_init__(self) -> None:
        check_block(self.block)
        check_smallest(self.smallest)
        if self.implementation != "own" and find_spec(self.implementation) is None:
            raise ValueError(f"{self.implementation} is not installed: pip install {self.implementation}")

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        return embeddings_apart(groups, run.anatomy) if self.keep_embeddings and not self.is_reference else groups

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        hyper: dict[str, Any] = {"lr": recipe.learning_rate, "betas": (recipe.beta1, recipe.beta2), "eps": recipe.eps}
        if self.implementation == "bitsandbytes":
            return bitsandbytes_adamw8bit(parameters, self.smallest, **hyper)
        fused = recipe.fused_optimizer
        return AdamW8bit(parameters, **hyper, block=self.block, smallest=self.smallest, fused=fused)


def bitsandbytes_adamw8bit(parameters: ParameterGroups, smallest: int, **hyper: Any) -> Optimizer:
    """Builds bitsandbytes' optimizer, with 32-bit moments where a group says ``"low_bit": False``: there, else, a
    setting of the whole process."""
    from bitsandbytes.optim import AdamW8bit as Theirs

    class WithGroups(Theirs):
        def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
            config: dict[str, Any] = super().get_config(gindex, pindex, group)
            return config if group.get("low_bit", True) else config | {"optim_bits": 32}

    optimizer: Optimizer = WithGroups(parameters, **hyper, min_8bit_size=smallest)
    return optimizer
