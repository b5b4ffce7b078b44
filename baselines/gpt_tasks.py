"""Trains GPT on instructions with answers: the loss is of prompt and answer alike, and of no padding.

As in alpaca-lora, whose ``train_on_inputs`` is true by default, and whose rows end at 256 tokens. The checkpoint is
trained on rows as long as these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from baselines import gpt, models
from baselines.gpt import LONGEST_WAVE, Gpt, next_tokens
from baselines.initialisation import begin_at_sinusoids
from baselines.instructions import IGNORED, instruction_data, is_instructions
from baselines.text import text_data
from baselines.tokens import Tokens, check_known, tokens_of
from suite.loop.baseline import Baseline, Predictor, Sample
from suite.loop.data import Batch, Data
from suite.record.job import Setting, Size

CUTOFF = 256


def form(setting: Setting) -> Baseline | None:
    """Returns instructions, where the user's data has them. Raises ValueError where a checkpoint knows other tokens."""
    if setting.data is not None and is_instructions(setting.data):
        return GptOnInstructions(tokens_of(setting.size, setting.model))
    check_known(setting.model, "instructions")
    return None


class GptOnInstructions(Gpt):
    quality: ClassVar[str] = "next-token cross-entropy of prompts and answers (nats)"

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        if split == "adapt" and location is not None:
            return instruction_data(location, CUTOFF, self.tokens)
        return text_data(size, "source", None, CUTOFF, framed=False, transform=next_tokens)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if override is not None:
            fitting = AutoModelForCausalLM._model_mapping
            config = models.configuration(override, fitting, "causal language modelling")
            if hasattr(config, "is_decoder"):  # an encoder's architecture is causal only when told so
                config.is_decoder = True
            return self.tokens.model(AutoModelForCausalLM, config, override, CUTOFF)
        own: Any = super().model(size, data).config
        own.n_positions = max(CUTOFF, own.n_positions)
        model = GPT2LMHeadModel(own)
        if size in LONGEST_WAVE:
            longest = LONGEST_WAVE[size] * CUTOFF / gpt.LENGTH[size]
            begin_at_sinusoids(model.transformer.wpe, longest, own.initializer_range)
        return model

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        return {}

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        return super().samples(predict, batch) if self.tokens.letters else []

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Sums over an example's tokens, by the mean number of them: their mean is that over the batch's tokens."""
        if "labels" not in batch:  # the checkpoint's own rows, without padding
            return super().losses(outputs, batch)
        targets = batch["labels"][:, 1:]
        logits = outputs.logits[:, :-1].float().flatten(0, 1)
        tokens = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
        return tokens.view_as(targets).sum(1) / _mean_length(targets)

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        if "labels" not in batch:
            return super().metrics(outputs, batch)
        targets = batch["labels"][:, 1:]
        right = (outputs.logits[:, :-1].argmax(-1) == targets).sum(1)
        return {"accuracy": right / _mean_length(targets)}


def _mean_length(targets: Tensor) -> Tensor:
    return (targets != IGNORED).sum() / len(targets)
