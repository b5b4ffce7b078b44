"""Visual prompt tuning (Jia et al., ECCV 2022, section 3.2): p tokens between the class token and the patches train.

Layer i of L reads the class token x, the prompts and the patches E, and only they and the head are trained:

    shallow    [x_1, Z_1, E_1] = layer_1([x_0, P, E_0])        [x_i, Z_i, E_i] = layer_i([x_(i-1), Z_(i-1), E_(i-1)])
    deep       [x_i,  _ , E_i] = layer_i([x_(i-1), P_(i-1), E_(i-1)])

So rows are as long in every layer. Prompts start as uniform as Xavier's rule has the embedding of a patch, between
+-sqrt(6 / (3 P^2 + d)) for patches of P x P pixels in three colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, anatomy
from suite.model.calls import undisturbed
from suite.model.leading import picture_row
from suite.model.segments import split_hidden
from techniques.fine_tuning.shared.frozen import freeze

UNREADABLE = (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError)


def with_prompt(prompt: Tensor, row: Tensor, leading: int, replaced: int = 0) -> Tensor:
    """Puts ``prompt`` [p, d] behind the ``leading`` tokens of a row [batch, tokens, d], in place of ``replaced``
    others."""
    prompts = prompt.to(row.dtype).expand(len(row), -1, -1)
    return torch.cat([row[:, :leading], prompts, row[:, leading + replaced :]], dim=1)


def without_prompt(row: Tensor, leading: int, length: int) -> Tensor:
    """Returns the row without the ``length`` tokens behind the ``leading`` ones."""
    return torch.cat([row[:, :leading], row[:, leading + length :]], dim=1)


def initial_prompt(length: int, width: int, patch_inputs: int, generator: torch.Generator) -> Tensor:
    """Draws a prompt [length, width], where a patch of ``patch_inputs`` numbers is embedded in ``width``."""
    bound = (6 / (patch_inputs + width)) ** 0.5
    return torch.empty(length, width).uniform_(-bound, bound, generator=generator)


def attach(parts: Anatomy, prompts: list[Tensor], leading: int) -> None:
    """From now on the main stack's first block reads the first of the ``prompts`` [p, d], and each following block its
    own in that one's place, as far as there are; behind the last block none is left. Each is its block's ``prompt``."""
    length = len(prompts[0])
    for number, (block, prompt) in enumerate(zip(parts.blocks, prompts, strict=False)):
        block.module.register_parameter("prompt", nn.Parameter(prompt))
        reads = partial(_reads, leading=leading, replaced=length if number else 0)
        block.module.register_forward_pre_hook(reads, with_kwargs=True)
    parts.blocks[-1].module.register_forward_hook(partial(_leaves, leading=leading, length=length))


def _reads(block: Any, args: Any, kwargs: Any, leading: int, replaced: int) -> Any:
    row, args, kwargs = split_hidden(args, kwargs)
    return (with_prompt(block.prompt, row, leading, replaced), *args), kwargs


def _leaves(block: Any, args: Any, output: Tensor, leading: int, length: int) -> Tensor:
    return without_prompt(output, leading, length)


@dataclass
class Vpt(Technique):
    """``length`` is p, 0 for full fine-tuning; ``deep`` gives every layer prompts of its own. The frozen model is in
    evaluation mode while it trains. ``learning_rate_ratio`` is over the baseline's full fine-tuning."""

    length: int = 5
    deep: bool = True
    learning_rate_ratio: float = 30.0
    zero_strength: ClassVar[Mapping[str, Any]] = {"length": 0}

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length is 1 or more, or 0 for full fine-tuning, not {self.length}")
        if not self.learning_rate_ratio > 0:
            raise ValueError(f"learning_rate_ratio must be positive, not {self.learning_rate_ratio}")

    def recipe(self, recipe: Recipe) -> Recipe:
        ratio = self.learning_rate_ratio if self.length else 1.0
        return replace(recipe, learning_rate=recipe.learning_rate * ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.length:
            return model
        parts = anatomy(model)
        leading, inputs = picture_row(parts, partial(run.trial, model))
        freeze(parts)
        count = parts.depth if self.deep else 1
        prompts = [initial_prompt(self.length, parts.width, inputs, run.generator) for _ in range(count)]
        attach(parts, [prompt.to(run.device) for prompt in prompts], leading)
        try:
            with torch.no_grad(), undisturbed(model):
                run.trial(model)
        except UNREADABLE as error:
            raise ValueError(f"{type(model).__name__} cannot read {self.length} tokens more: {error}") from error
        return model

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.length:
            run.model.eval()
        return nullcontext()

    def sites(self, run: Run) -> Mapping[str, Site]:
        named = run.model.named_parameters()
        return {name: prompt for name, prompt in named if name.endswith(".prompt")} if self.length else {}
