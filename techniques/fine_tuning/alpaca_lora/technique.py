"""Alpaca-LoRA (tloen/alpaca-lora, finetune.py): a causal language model learns to follow instructions, by LoRA.

The recipe, whole: rank 8, alpha 16, dropout 0.05 on the queries' and values' input, AdamW at 3e-4 without weight decay,
batches of 128 in passes of 4 examples, 100 steps of warm-up of some 1200, linear decay. The loss is of the prompt and
the answer alike: ``train_on_inputs`` is true by default there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from techniques.fine_tuning.shared import adapters
from techniques.fine_tuning.shared.adapters import Implementation, LowRank

STEPS = 3 * 50_002 / 128  # 3 epochs of Alpaca's examples, less the 2000 that are held out
WARMUP = 100 / STEPS
LEAST_STEPS = math.ceil(STEPS / 100)  # of which one warms up


@dataclass
class AlpacaLoRA(Technique):
    """Learns from as many examples as the reference sees, in steps of ``batch_size``, but takes a dozen steps at least;
    ``micro_batch_size`` examples pass at once."""

    takes: ClassVar[str] = "puts low-rank updates on the layers"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.05
    targets: tuple[str, ...] = ("query", "value")
    learning_rate: float = 3e-4
    batch_size: int = 128
    micro_batch_size: int = 4
    implementation: Implementation = "own"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is 1 or more, not {self.rank}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")
        if not (self.alpha > 0 and self.learning_rate > 0):
            raise ValueError("alpha and learning_rate must be positive")
        if self.micro_batch_size < 1 or self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"passes of {self.micro_batch_size} do not make a batch of {self.batch_size}: choose a divisor of it"
            )
        adapters.check_installed(self.implementation)

    def recipe(self, recipe: Recipe) -> Recipe:
        examples = recipe.steps * recipe.batch_size
        return replace(
            recipe,
            steps=max(LEAST_STEPS, round(examples / self.batch_size)),
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            schedule="linear",
            warmup_fraction=WARMUP,
            final_learning_rate_ratio=0.0,
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            gradient_clip=1.0,
        )

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        update = LowRank(self.rank, self.alpha, self.dropout)
        return adapters.adapted(model, run, self.targets, update, self.implementation)

    def update(self, run: Run, batch: Batch) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        passes = parts(batch, self.micro_batch_size)
        losses = []
        for pass_ in passes:
            loss = run.forward(pass_) / len(passes)
            run.backward(loss)
            losses.append(loss.detach())
        run.loss = torch.stack(losses).sum()
        run.apply_gradients()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return adapters.sites(run.model)


def parts(batch: Batch, size: int) -> list[Batch]:
    """Splits the batch into parts of ``size`` examples."""
    split = {name: tensor.split(size) for name, tensor in batch.items()}
    return [dict(zip(split, tensors, strict=True)) for tensors in zip(*split.values(), strict=True)]
