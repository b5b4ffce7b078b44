"""Prompt tuning (Lester, Al-Rfou & Constant, EMNLP 2021, section 2): vectors before the text are all that trains.

With E(x) [tokens, d] the embedded text, the frozen model reads

    [P; E(x)]        P [l, d] trained,

and answers for the text alone. P starts as embeddings of tokens drawn from the most common ones (section 3.2).

A learned table of positions has no rows to spare where texts are as long as it allows. The text keeps the positions at
which the model was pre-trained to read it, and all vectors of the prompt have that of its first token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, anatomy
from suite.model.calls import Forward, undisturbed
from suite.model.texts import text_input, text_positions
from techniques.fine_tuning.shared.frozen import freeze

Initialization = Literal["vocabulary", "uniform"]
COMMON = 5000  # the most common tokens; vocabularies number them by frequency
UNIFORM = 0.5
WITH_EACH_TOKEN = {"attention_mask": 1, "token_type_ids": 0}  # arguments, and their values for the prompt
UNLABELLED = -100  # torch's label of a position without a target
UNREADABLE = (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError)


def sampled_tokens(vocabulary: int, length: int, generator: torch.Generator, common: int = COMMON) -> Tensor:
    """Draws ``length`` of the ``common`` first tokens of a vocabulary, int64: each once, unless these are too few."""
    population = min(common, vocabulary)
    if length > population:
        return torch.randint(population, (length,), generator=generator)
    return torch.randperm(population, generator=generator)[:length]


@torch.no_grad()
def initial_prompt(
    table: nn.Module, length: int, initialization: Initialization, generator: torch.Generator
) -> nn.Parameter:
    """Draws P [length, d] of the embedding ``table``: embeddings of :func:`sampled_tokens`, or uniform numbers."""
    weight: Any = table.weight
    if initialization == "uniform":
        drawn = torch.empty(length, weight.shape[1]).uniform_(-UNIFORM, UNIFORM, generator=generator)
        return nn.Parameter(drawn.to(weight))
    return nn.Parameter(table(sampled_tokens(len(weight), length, generator).to(weight.device)).clone())


def before_text(prompt: Tensor, text: Tensor) -> Tensor:
    """Returns [P; E(x)] [batch, l + tokens, d] for P [l, d] and E(x) [batch, tokens, d]."""
    return torch.cat([prompt.to(text.dtype).expand(len(text), -1, -1), text], dim=1)


def prepend(parts: Anatomy, prompt: nn.Parameter, forward: Forward) -> None:
    """Registers ``prompt`` as a parameter of that name where text comes into the model, which reads it before every
    text from now on; ``forward`` shows it some. Raises ValueError where it cannot."""
    module, positions = text_input(parts.model).module, text_positions(parts, forward)
    if positions is not None:
        positions = torch.cat([positions[:, :1].expand(-1, len(prompt)), positions], dim=1)
    with torch.no_grad(), undisturbed(parts.model):
        plain = forward().logits.shape
    module.register_parameter("prompt", prompt)
    module.register_buffer("prompt_positions", positions, persistent=False)
    module.register_forward_pre_hook(_reads_the_prompt, with_kwargs=True)
    module.register_forward_hook(_answers_for_the_text, with_kwargs=True)
    try:
        with torch.no_grad(), undisturbed(parts.model):
            fits = forward().logits.shape == plain
    except UNREADABLE as error:
        raise ValueError(f"{type(parts.model).__name__} cannot read a prompt of {len(prompt)}: {error}") from error
    if not fits:
        raise ValueError(f"which logits of {type(parts.model).__name__} are the text's cannot be told")


def positions_of(known: Tensor, count: int) -> Tensor:
    """Returns the first ``count`` positions; behind those that are known, [1, tokens], they go on one by one."""
    more = torch.arange(1, max(0, count - known.shape[1]) + 1, device=known.device)
    return torch.cat([known[:, :count], known[:, -1:] + more], dim=1)


def _reads_the_prompt(module: Any, args: Any, kwargs: Any) -> Any:
    (tokens,) = args or (kwargs["input_ids"],)  # what goes with them is passed by name
    row = before_text(module.prompt, module.get_input_embeddings()(tokens))
    inputs = {**kwargs, "inputs_embeds": row}
    inputs.pop("input_ids", None)
    for name, value in WITH_EACH_TOKEN.items():
        if inputs.get(name) is not None:
            inputs[name] = F.pad(inputs[name], (len(module.prompt), 0), value=value)
    labels = inputs.get("labels")
    if labels is not None and labels.shape == tokens.shape and not getattr(module.config, "is_encoder_decoder", False):
        inputs["labels"] = F.pad(labels, (len(module.prompt), 0), value=UNLABELLED)  # the model's own loss is over all
    if inputs.get("attention_mask") is None:  # positions that start again would be those of several texts without one
        inputs["attention_mask"] = torch.ones(row.shape[:2], dtype=torch.int64, device=row.device)
    if module.prompt_positions is not None:
        inputs["position_ids"] = positions_of(module.prompt_positions, row.shape[1])
    return (), inputs


def _answers_for_the_text(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
    if output.logits.shape[1] == kwargs["inputs_embeds"].shape[1]:  # a decoder behind an encoder reads no prompt
        output.logits = output.logits[:, len(module.prompt) :]
    return output


@dataclass
class PromptTuning(Technique):
    """``length`` is l, 0 for full fine-tuning. ``initialization``: "vocabulary", or "uniform" between -0.5 and 0.5, the
    paper's other (section 3.2). ``learning_rate_ratio`` is over the baseline's full fine-tuning."""

    length: int = 100
    initialization: Initialization = "vocabulary"
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
        if self.length:
            parts = anatomy(model)
            table = text_input(model).table
            freeze(parts)
            prompt = initial_prompt(table, self.length, self.initialization, run.generator)
            prepend(parts, prompt, partial(run.trial, model))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        module: Any = text_input(run.model).module
        return {"prompt": module.prompt} if self.length else {}
