"""LoRA (Hu et al., ICLR 2022, section 4.1): h = W0 x + (alpha / r) B A x, with W0 frozen.

W_q and W_v of every attention get an update of rank r (section 4.2 and table 5); everything else that is pre-trained is
frozen. B starts at zero, so the adapted model starts as the pre-trained one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.sites import Site
from suite.contract.technique import Technique
from suite.model.anatomy import Anatomy, AroundLinear, anatomy, is_transposed, weight_matrix
from suite.model.projections import Rows, projection_rows

Initialization = Literal["kaiming_uniform", "gaussian"]


def low_rank_update(x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """``scale`` * B A x for x [..., d_in], A [r, d_in], B [d_out, r]; returns [..., d_out]."""
    return F.linear(F.linear(x, a), b) * scale


class LowRankLinear(AroundLinear):
    """A frozen linear layer y = W0 x with a trainable update for each of several sets of W0's ``rows``.

    Two serve a fused query-key-value projection, where they need not be consecutive.
    """

    def __init__(
        self, linear: nn.Module, rows: Sequence[Sequence[int]], rank: int, alpha: float, dropout: float,
        initialization: Initialization, generator: torch.Generator,
    ) -> None:  # fmt: skip
        super().__init__(linear.requires_grad_(False))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout)
        weight = weight_matrix(linear)
        factors = [torch.empty(rank, weight.shape[1]) for _ in rows]
        for a in factors:
            if initialization == "gaussian":
                nn.init.normal_(a, std=1 / rank, generator=generator)
            else:
                nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        self.a = nn.ParameterList(a.to(weight) for a in factors)
        self.b = nn.ParameterList(weight.new_zeros(len(each), rank) for each in rows)
        self.slices = [slice(each.start, each.stop) if isinstance(each, range) else None for each in rows]
        for index, each in enumerate(rows):
            scattered = None if isinstance(each, range) else torch.tensor(each, device=weight.device)
            self.register_buffer(f"rows{index}", scattered, persistent=False)

    def updates(self) -> Iterator[tuple[Any, nn.Parameter, nn.Parameter]]:
        """An index of rows with their A and B."""
        for index, (consecutive, a, b) in enumerate(zip(self.slices, self.a, self.b, strict=True)):
            yield consecutive or getattr(self, f"rows{index}"), a, b

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        x = self.dropout(x)
        for rows, a, b in self.updates():
            out[..., rows] += low_rank_update(x, a, b, self.scale)
        return out

    @torch.no_grad()
    def add_to_weight(self, sign: int) -> None:
        """Adds ``sign`` times the update to W0: +1 merges, -1 takes it out again (to rounding, not to the bit)."""
        weight = weight_matrix(self.linear)
        for rows, a, b in self.updates():
            weight[rows] += sign * self.scale * (b @ a)


class LowRankWeight(LowRankLinear):
    """As :class:`LowRankLinear`, where the model reads the layer's weight and never calls the layer."""

    @property
    def weight(self) -> Tensor:
        weight = weight_matrix(self.linear).clone()
        for rows, a, b in self.updates():
            weight[rows] += self.scale * (b @ a)
        return weight.T if is_transposed(self.linear) else weight


def merge(model: nn.Module) -> nn.Module:
    """Puts the layers themselves, with weight W0 + (alpha / r) B A, in place of the adapted ones; returns ``model``."""
    for path, update in updates(model).items():
        update.add_to_weight(+1)
        anatomy(model).replace(path, update.linear)
    return model


def updates(model: nn.Module) -> dict[str, LowRankLinear]:
    """The adapted layers by name."""
    return {path: module for path, module in model.named_modules() if isinstance(module, LowRankLinear)}


@dataclass
class LoRA(Technique):
    """``initialization`` is A's: Gaussian in the paper, kaiming_uniform(sqrt 5) in its code (loralib) and in peft.

    The output layer trains too, as in the paper's classification tasks, unless it is a language model's, whose classes
    are the pre-trained tokens. ``learning_rate_ratio`` is over the baseline's full fine-tuning; the paper's GLUE rates
    are ten and more times those of full fine-tuning (appendix D).
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    initialization: Initialization = "kaiming_uniform"
    train_head: bool = True
    learning_rate_ratio: float = 10.0
    zero_strength: ClassVar[Mapping[str, Any]] = {"rank": 0}

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"rank is 1 or more, or 0 for full fine-tuning, not {self.rank}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")
        if not (self.alpha > 0 and self.learning_rate_ratio > 0):
            raise ValueError("alpha and learning_rate_ratio must be positive")

    def recipe(self, recipe: Recipe) -> Recipe:
        ratio = self.learning_rate_ratio if self.rank else 1.0
        return replace(recipe, learning_rate=recipe.learning_rate * ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.rank:
            return model
        parts = anatomy(model)
        found = projection_rows(model, parts.every_block, partial(run.trial, model))
        model.requires_grad_(False)
        for query, value in [(each["query"], each["value"]) for each in found]:
            fused = query.layer.path == value.layer.path
            for making in ([query, value],) if fused else ([query], [value]):
                self.adapt(parts, making, run.generator)
        if self.train_head:
            tables = {embedding.module.weight.shape for embedding in parts.embeddings}
            for head in parts.head:
                head.module.requires_grad_(weight_matrix(head.module).shape not in tables)
        return model

    def adapt(self, parts: Anatomy, making: Sequence[Rows], generator: torch.Generator) -> None:
        """Replaces the layer that all of ``making`` are rows of."""
        layer, rows = making[0].layer, [each.rows for each in making]
        if making[0].bypassed and self.dropout:
            raise ValueError(f"the model reads {layer.path}'s weight and never calls it: there is no input to drop out")
        kind = LowRankWeight if making[0].bypassed else LowRankLinear
        adapted = kind(layer.module, rows, self.rank, self.alpha, self.dropout, self.initialization, generator)
        parts.replace(layer.path, adapted)

    def sites(self, run: Run) -> Mapping[str, Site]:
        sites: dict[str, Site] = {}
        for path, update in updates(run.model).items():
            sites |= {f"{path}.{name}": factor for name, factor in update.named_parameters() if factor.requires_grad}
            if not isinstance(update, LowRankWeight):
                sites[path] = update
        return sites
