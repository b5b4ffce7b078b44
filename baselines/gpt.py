"""Implements GPT-2 (Radford et al., 2019): causal language modelling, each token from those before it.

The CPU sizes read letters in short rows: at equal tokens a step, more rows of fewer tokens learn faster. Their weights
and positions begin as :mod:`baselines.initialisation` says. nano, micro and mini are a ladder: the same text, rows as
long, 8.8 tokens a parameter, and no letter read twice, so that what changes from one to the next is scale. A model with
far fewer tokens, as the reference once was, rewards whatever makes it smaller at first. nano's width is the best for
its time: in 25 CPU-seconds widths of 32, 48 and 64 end at 1.61, 1.60 and 1.65 nats (test, one seed), rows of 64 tokens
in place of 32 at 1.65. Its rate lies between those of least validation loss, 0.007 and 0.00875 (1.542 and 1.540; 0.0056
gives 1.553, 0.011 gives 1.549). There a seed's ln loss deviates by 0.0038 at a slope of -0.131 in ln budget (three
seeds at 0.7 and 1.4 times the steps): 0.029 of ln budget.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from baselines import classical, models
from baselines.initialisation import begin_at_sinusoids, weight_deviation
from baselines.recipes import named
from baselines.text import CHARACTERS, PAD, SEP, SPECIAL, VOCABULARY, spelled, text_data, text_shapes
from suite.loop.baseline import Baseline, Family, Predictor, Sample
from suite.loop.data import Batch, Data, generator
from suite.loop.recipe import Recipe
from suite.record.job import RecipeName, Size, Task

LENGTH: dict[Size, int] = {"pico": 16, "nano": 32, "micro": 32, "mini": 32, "base": 1024, "large": 1024}
_CONFIG: dict[Size, dict[str, Any]] = {
    "pico": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "nano": {"n_embd": 48, "n_layer": 4, "n_head": 4},
    "micro": {"n_embd": 80, "n_layer": 4, "n_head": 4},
    "mini": {"n_embd": 144, "n_layer": 4, "n_head": 4},
    "base": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "large": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
}
LONGEST_WAVE: dict[Size, float] = {
    "pico": 30,
    "nano": 100,
    "micro": 100,
    "mini": 100,
}  # of the CPU sizes' positions, over 2 pi
_MODEL_VOCABULARY: dict[Size, int] = {**VOCABULARY, "base": 50257, "large": 50257}
# Betas, weight decay, clipping, schedule and learning rate as GPT-3 published them for these sizes (arXiv 2005.14165,
# table 2.1 and appendix B): GPT-2's own are unpublished.
_GPT3: dict[str, Any] = {"beta2": 0.95, "weight_decay": 0.1}
_SMALL: dict[str, Any] = {**_GPT3, "schedule": "linear"}  # to 0
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=4e-3, **_SMALL),
    "nano": Recipe(steps=1000, batch_size=32, learning_rate=8e-3, **_SMALL),
    "micro": Recipe(steps=2700, batch_size=32, learning_rate=5e-3, **_SMALL),
    "mini": Recipe(steps=4350, batch_size=64, learning_rate=3e-3, **_SMALL),
    "base": Recipe(steps=600, batch_size=8, learning_rate=6e-4, **_GPT3),
    "large": Recipe(steps=600, batch_size=4, learning_rate=3e-4, **_GPT3),
}
TEMPERATURE = 0.5  # of the letters that samples are drawn with: the likeliest ones alone repeat "the the the"


def next_tokens(batch: Batch, generator: torch.Generator) -> Batch:
    """Makes ``input_ids`` int64 [batch, length]: inputs and, one position later, targets."""
    return {"input_ids": batch["input_ids"].long()}


class Gpt(Baseline):
    id: ClassVar[str] = "gpt"
    version: ClassVar[int] = 3
    modality: ClassVar[Literal["text", "image"]] = "text"
    hub_task: ClassVar[str] = "text-generation"
    quality: ClassVar[str] = "next-token cross-entropy (nats)"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        return named(_PRETRAIN, size, name, task)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        return text_data(size, split, location, LENGTH[size], framed=False, transform=next_tokens)

    def shapes(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        return self.data(size, split, location) if location is not None else text_shapes(LENGTH[size], next_tokens)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if override is not None:
            fitting = AutoModelForCausalLM._model_mapping
            config = models.configuration(override, fitting, "causal language modelling")
            if hasattr(config, "is_decoder"):  # an encoder's architecture is causal only when told so
                config.is_decoder = True
            return models.text_model(AutoModelForCausalLM, config, override, VOCABULARY[size], LENGTH[size])
        config = GPT2Config(
            vocab_size=_MODEL_VOCABULARY[size],
            n_positions=LENGTH[size],
            bos_token_id=SEP,
            eos_token_id=SEP,
            use_cache=False,
            resid_pdrop=0.0,  # no dropout where no example is seen twice, as in GPT-3 and in reproductions of GPT-2
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **_CONFIG[size],
        )
        if size not in LONGEST_WAVE:
            return GPT2LMHeadModel(config)
        config.initializer_range = weight_deviation(config.n_embd)
        model = GPT2LMHeadModel(config)
        begin_at_sinusoids(model.transformer.wpe, LONGEST_WAVE[size], config.initializer_range)
        return model

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if VOCABULARY[size] > classical.LARGEST_VOCABULARY:
            return {}
        rows = data.train.tensors["input_ids"]
        orders = {"Kneser-Ney trigram": 3, **({"Kneser-Ney 4-gram": 4} if size in ("micro", "mini") else {})}
        return {name: classical.KneserNey(rows, VOCABULARY[size], order) for name, order in orders.items()}

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        """Draws letters one by one after the first half of each row; none where the tokens are not letters."""
        rows = batch["input_ids"].clone()
        if rows.max() >= CHARACTERS:
            return []
        half = rows.shape[1] // 2
        rows[:, half:] = PAD
        noise = generator(0)
        for position in range(half, rows.shape[1]):
            logits = predict({"input_ids": rows}).logits[:, position - 1, len(SPECIAL) : CHARACTERS].float()
            drawn = (logits.cpu() / TEMPERATURE).softmax(-1).multinomial(1, generator=noise)
            rows[:, position] = len(SPECIAL) + drawn[:, 0].to(rows.device)
        texts = [f"{spelled(row[:half])}|{spelled(row[half:])}" for row in rows]
        return [Sample("a held-out beginning | what the model writes after it", text) for text in texts]

    def families(self) -> Mapping[str, Family]:
        from baselines.families import DECODERS  # no part of a run's code: a new one leaves its evidence verified

        return DECODERS

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(input_ids=batch["input_ids"])

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        targets = batch["input_ids"][:, 1:]
        tokens = F.cross_entropy(outputs.logits[:, :-1].float().flatten(0, 1), targets.flatten(), reduction="none")
        return tokens.view_as(targets).mean(1)

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (outputs.logits[:, :-1].argmax(-1) == batch["input_ids"][:, 1:]).float().mean(1)}
