"""Implements LoRA (Hu et al., ICLR 2022, section 4.1): h = W0 x + (alpha / r) B A x, with W0 frozen.

W_q and W_v of every attention get an update of rank r (section 4.2 and table 5); everything else that is pre-trained is
frozen. B starts at zero, so the adapted model starts as the pre-trained one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy, weight_matrix
from techniques.fine_tuning.shared import adapters
from techniques.fine_tuning.shared.adapters import Implementation, LowRank
from techniques.fine_tuning.shared.low_rank import Initialization


@dataclass
class LoRA(Technique):
    """``initialization`` is A's: Gaussian in the paper, kaiming_uniform(sqrt 5) in its code (loralib) and in peft.

    ``targets`` are what gets an update (:func:`low_rank.targets_of`). The output layer trains too, as
    in the paper's classification tasks, unless it is a language model's, whose classes are the pre-trained tokens.
    ``learning_rate_ratio`` is over the baseline's full fine-tuning; the paper's GLUE rates are ten and more times those
    of full fine-tuning (appendix D). ``implementation=peft`` has peft's layers in the place of ours.
    """

    takes: ClassVar[str] = "puts low-rank updates on the layers"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("query", "value")
    initialization: Initialization = "kaiming_uniform"
    train_head: bool = True
    learning_rate_ratio: float = 10.0
    implementation: Implementation = "own"
    zero_strength: ClassVar[Mapping[str, Any]] = {"rank": 0}

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"rank is 1 or more, or 0 for full fine-tuning, not {self.rank}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")
        if not (self.alpha > 0 and self.learning_rate_ratio > 0):
            raise ValueError("alpha and learning_rate_ratio must be positive")
        adapters.check_installed(self.implementation)

    def recipe(self, recipe: Recipe) -> Recipe:
        ratio = self.learning_rate_ratio if self.rank else 1.0
        return replace(recipe, learning_rate=recipe.learning_rate * ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.rank:
            return model
        update = LowRank(self.rank, self.alpha, self.dropout, self.initialization)
        model = adapters.adapted(model, run, self.targets, update, self.implementation)
        if self.train_head:
            parts = anatomy(model)
            tokens = [embedding.module.weight.shape for embedding in parts.embeddings[:1]]  # then positions, segments
            for head in parts.head:
                head.module.requires_grad_(weight_matrix(head.module).shape not in tokens)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return adapters.sites(run.model)
