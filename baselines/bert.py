"""Implements BERT (Devlin et al., arXiv 1810.04805): masked language modelling, section 3.1 task 1.

Exactly 15 % of each row's tokens are chosen; of those 80 % become the mask token, 10 % a random token, 10 % stay. As
every row has equally many, the mean of row means is the mean over tokens, also when rows are spread over ranks. There
is no next-sentence task, which later work found of no use (arXiv 1907.11692, table 2).

The CPU sizes read letters in short rows and choose 30 % of them (more to learn from a step: arXiv 2202.08005), without
dropout: no row is seen often enough to be learned by heart. They begin as :mod:`baselines.initialisation` says; where
they began as in the paper, their loss stayed at the frequencies of the letters. nano, micro and mini have rows as long
and 6.5 tokens a parameter. nano's rate is that of least validation loss: 0.8, 1 and 1.25 times of it end at 1.853,
1.836 and 1.858 (two seeds).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, BertConfig, BertForMaskedLM

from baselines import classical, models
from baselines.initialisation import begin_at_sinusoids, shrink_branches, weight_deviation
from baselines.recipes import named
from baselines.text import CHARACTERS, CLS, MASK, SEP, SPECIAL, VOCABULARY, spelled, text_data, text_shapes
from suite.loop.baseline import Baseline, Family, Predictor, Sample
from suite.loop.data import Batch, Data
from suite.loop.recipe import Recipe
from suite.record.job import RecipeName, Size, Task

MASKED_SHARE: dict[Size, float] = {"pico": 0.3, "nano": 0.3, "micro": 0.3, "mini": 0.3, "base": 0.15, "large": 0.15}
IGNORED = -100
LENGTH: dict[Size, int] = {"pico": 16, "nano": 16, "micro": 16, "mini": 16, "base": 512, "large": 512}
_CONFIG: dict[Size, dict[str, Any]] = {
    "pico": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "nano": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128},
    "micro": {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 192},
    "mini": {"hidden_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 320},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
LONGEST_WAVE: dict[Size, float] = {
    "pico": 30,
    "nano": 30,
    "micro": 30,
    "mini": 30,
}  # of the CPU sizes' positions, over 2 pi
BRANCHES = 0.15  # of their usual size at the start; with 0.35 the loss after nano's steps is 2 % higher
_MODEL_VOCABULARY: dict[Size, int] = {**VOCABULARY, "base": 30522, "large": 30522}
_SMALL: dict[str, Any] = {"schedule": "linear", "beta2": 0.98}  # beta2 as RoBERTa's (arXiv 1907.11692)
# Appendix A.2: Adam with betas 0.9 and 0.999, weight decay 0.01, linear decay, learning rate 1e-4 at base.
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=3e-3, **_SMALL),
    "nano": Recipe(steps=1200, batch_size=48, learning_rate=4.8e-3, **_SMALL),
    "micro": Recipe(steps=2660, batch_size=48, learning_rate=3.2e-3, **_SMALL),
    "mini": Recipe(steps=7300, batch_size=48, learning_rate=1.9e-3, **_SMALL),
    "base": Recipe(steps=600, batch_size=32, learning_rate=1e-4, schedule="linear"),
    "large": Recipe(steps=600, batch_size=16, learning_rate=1e-4, schedule="linear"),
}


@dataclass(frozen=True)
class MaskedTokens:
    """Turns rows of tokens to ``input_ids`` and ``labels`` int64 [batch, length], IGNORED where a token is not
    chosen."""

    vocabulary: int
    share: float

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        tokens = batch["input_ids"].long()
        chosen = round(self.share * tokens.shape[1])
        order = torch.rand(tokens.shape, generator=generator)
        order[(tokens == CLS) | (tokens == SEP)] = 2.0  # after every other token: framing is never chosen
        where = order.topk(chosen, dim=1, largest=False).indices
        original = tokens.gather(1, where)
        fate = torch.rand(original.shape, generator=generator)
        random = torch.randint(len(SPECIAL), self.vocabulary, original.shape, generator=generator)
        shown = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, random, original))
        labels = torch.full_like(tokens, IGNORED).scatter(1, where, original)
        return {"input_ids": tokens.scatter(1, where, shown), "labels": labels}


class Bert(Baseline):
    id: ClassVar[str] = "bert"
    version: ClassVar[int] = 3
    modality: ClassVar[Literal["text", "image"]] = "text"
    hub_task: ClassVar[str] = "fill-mask"
    quality: ClassVar[str] = "masked-token cross-entropy (nats)"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        return named(_PRETRAIN, size, name, task)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        transform = MaskedTokens(VOCABULARY[size], MASKED_SHARE[size])
        return text_data(size, split, location, LENGTH[size], framed=True, transform=transform)

    def shapes(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        if location is not None:
            return self.data(size, split, location)
        return text_shapes(LENGTH[size], MaskedTokens(VOCABULARY[size], MASKED_SHARE[size]))

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if override is not None:
            return _of_a_user(override, VOCABULARY[size], LENGTH[size])
        positions = max(512, LENGTH[size]) if size in ("base", "large") else LENGTH[size]
        config = BertConfig(vocab_size=_MODEL_VOCABULARY[size], max_position_embeddings=positions, **_CONFIG[size])
        if size not in LONGEST_WAVE:
            return BertForMaskedLM(config)
        config.initializer_range = weight_deviation(config.hidden_size)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        model = BertForMaskedLM(config)
        begin_at_sinusoids(model.bert.embeddings.position_embeddings, LONGEST_WAVE[size], config.initializer_range)
        shrink_branches(model, BRANCHES)
        return model

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if VOCABULARY[size] > classical.LARGEST_VOCABULARY:
            return {}
        rows = data.train.tensors["input_ids"]
        return {
            "token frequencies": classical.Unigram(rows[:, 1:-1], VOCABULARY[size]),  # framing is never masked
            "two neighbours": classical.Neighbours(rows, VOCABULARY[size], MASK),
        }

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        """Shows each row with the likeliest letters in place of the chosen ones; none of rows that are not letters."""
        shown, labels = batch["input_ids"], batch["labels"]
        if shown.max() >= CHARACTERS:
            return []
        chosen = labels != IGNORED
        original = shown.where(~chosen, labels)
        likeliest = len(SPECIAL) + predict(batch).logits[..., len(SPECIAL) : CHARACTERS].argmax(-1)
        rows = (row[:, 1:-1] for row in (original, likeliest, chosen))  # without the framing
        samples = []
        for row, guesses, hidden in zip(*rows, strict=True):
            letters = zip(spelled(row), spelled(guesses), hidden.tolist(), strict=True)
            filled = "".join(f"[{guess}]" if hid else letter for letter, guess, hid in letters)
            samples.append(
                Sample("the model's guesses at the letters hidden from it | the row", f"{filled} | {spelled(row)}")
            )
        return samples

    def families(self) -> Mapping[str, Family]:
        from baselines.families import ENCODERS  # no part of a run's code: a new one leaves its evidence verified

        return ENCODERS

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(input_ids=batch["input_ids"])

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        labels = batch["labels"]
        tokens = F.cross_entropy(
            outputs.logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return tokens.view_as(labels).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        right = (outputs.logits.argmax(-1) == labels).sum(1)
        return {"accuracy": right / (labels != IGNORED).sum(1).clamp(min=1)}


def _of_a_user(folder: str, vocabulary: int, length: int) -> nn.Module:
    masked, denoising = AutoModelForMaskedLM, AutoModelForSeq2SeqLM
    fitting = {*masked._model_mapping.keys(), *denoising._model_mapping.keys()}
    config = models.configuration(folder, fitting, "masked language modelling")
    if type(config) in masked._model_mapping:
        return models.text_model(masked, config, folder, vocabulary, length)
    return models.Denoising(models.text_model(denoising, config, folder, vocabulary, length))
