"""Implements LAWA: evaluate the mean of the latest k checkpoints of a training run that knows nothing of it.

Kaddour, "Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging" (HITY workshop
at NeurIPS 2022, arXiv 2209.14981), section 2: a queue of k checkpoints, one an epoch, and their uniform average.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique

Weights = dict[str, Tensor]


def snapshot(model: nn.Module) -> Weights:
    """Returns a copy of the model's parameters. Clones: what ``detach().cpu()`` gives on a CPU is the live weight
    itself."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def mean(versions: Sequence[Weights]) -> Weights:
    """Computes the arithmetic mean by name, in float32 at least."""
    means = {}
    for name, like in versions[0].items():
        wide = torch.promote_types(like.dtype, torch.float32)
        means[name] = torch.stack([version[name] for version in versions]).mean(0, dtype=wide)
    return means


@dataclass
class Lawa(Technique):
    """Checkpoints are taken every ``interval`` of the run; 1/90 is the paper's one an epoch of a 90-epoch run.

    An evaluation averages the current weights and the k - 1 latest checkpoints before them. Buffers stay the current.
    ``decay=False`` holds the learning rate after its warm-up, as in the middle of a long run.
    """

    k: int = 6
    interval: float = 1 / 90
    decay: bool = True
    taken: deque[tuple[int, Weights]] = field(init=False, repr=False)
    averaged: Act = field(init=False, repr=False, default_factory=partial(Act, "run"))

    zero_strength: ClassVar[dict[str, Any]] = {"k": 1}

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k, the number of checkpoints to average, must be at least 1, not {self.k}")
        if not 0 < self.interval <= 1:
            raise ValueError(f"interval is a fraction of the run's steps in (0, 1], not {self.interval}")
        self.taken = deque(maxlen=self.k)

    def recipe(self, recipe: Recipe) -> Recipe:
        return recipe if self.decay else replace(recipe, schedule="constant")

    def after_step(self, run: Run) -> None:
        if self.k > 1 and run.step % max(1, round(self.interval * run.recipe.steps)) == 0:
            self.taken.append((run.step, snapshot(run.model)))

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        current = snapshot(run.model)
        before = [weights for step, weights in self.taken if step < run.step and _same_shapes(weights, current)]
        window = [*before[max(0, len(before) - self.k + 1) :], current]
        if len(window) == 1:
            return model
        averaged = copy.deepcopy(run.model)
        with torch.no_grad():
            weights = mean(window)
            self.averaged()
            for name, parameter in averaged.named_parameters():
                parameter.copy_(weights[name])
        for earlier in self._before(run):  # what they did to the current weights (merge, gather) they do to the mean
            averaged = earlier.evaluated(averaged, run)
        return averaged

    def _before(self, run: Run) -> Iterator[Technique]:
        """Yields the techniques that come before this one in the run's stack."""
        return takewhile(lambda technique: technique is not self, run.technique.techniques.values())

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"averages checkpoints": self.averaged}

    def state(self) -> dict[str, Any]:
        return {"taken": [{"step": step, "weights": weights} for step, weights in self.taken]}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.taken = deque(
            ((checkpoint["step"], checkpoint["weights"]) for checkpoint in state["taken"]), maxlen=self.k
        )


def _same_shapes(one: Weights, other: Weights) -> bool:
    """Returns False for a checkpoint from before the model was grown: it cannot be averaged with what came after."""
    return {n: t.shape for n, t in one.items()} == {n: t.shape for n, t in other.items()}
