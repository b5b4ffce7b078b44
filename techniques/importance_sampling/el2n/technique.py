"""Implements EL2N: train only on the examples that a briefly trained network gets most wrong.

Paul, Ganguli & Dziugaite, "Deep Learning on a Data Diet: Finding Important Examples Early in Training" (NeurIPS 2021,
arXiv 2107.07075), definition 2.2: the score of an example is the mean over K runs of ||softmax(f(x)) - y||_2 early in
training; keep the highest-scored fraction and train from scratch, for as many steps as on all examples (the authors'
github.com/mansheej/data_diet, scripts/run_keep_max_scores.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.loop.data import Data, generator, mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from techniques.importance_sampling.shared.data_pruning import shortened
from techniques.importance_sampling.shared.error_norms import losses_and_scores


def highest(scores: Tensor, keep: float, offset: float = 0.0) -> Tensor:
    """Returns the ascending indices of the ``keep`` highest-scored share once the ``offset`` highest-scored share is
    left out."""
    first, count = round(offset * len(scores)), max(1, round(keep * len(scores)))
    order = scores.argsort(descending=True, stable=True)
    return order[first : first + count].sort().values


@dataclass
class El2n(Technique):
    """``runs`` short runs score the examples, each with a whole schedule over ``scout`` of the steps. ``shorter``: the
    run itself takes ``keep`` of them.

    Where the reference would not get through its data once, only the examples that it would see are candidates.
    """

    keep: float = 0.5
    runs: int = 2
    scout: float = 0.1
    offset: float = 0.0
    shorter: bool = False
    reference: Recipe | None = field(init=False, repr=False, default=None)  # the recipe before it is shortened
    scores: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0, 0))
    scouts: list[dict[str, float]] = field(init=False, repr=False, default_factory=list)  # what each has learned
    pruned: Act = field(init=False, repr=False, default_factory=Act)

    zero_strength: ClassVar[dict[str, Any]] = {"keep": 1.0}

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is the share of the examples to train on, in (0, 1], not {self.keep}")
        if not 0 <= self.offset <= 1 - self.keep:
            raise ValueError(f"offset, the hardest share to leave out, must lie in [0, 1 - keep], not {self.offset}")
        if self.runs < 1 or not 0 < self.scout <= 1:
            raise ValueError(f"runs must be at least 1 and scout in (0, 1], not {self.runs} and {self.scout}")

    def recipe(self, recipe: Recipe) -> Recipe:
        self.reference = recipe
        return shortened(recipe, self.keep) if self.shorter else recipe

    def data(self, data: Data, run: Run) -> Data:
        if self.keep == 1:
            return data
        assert self.reference is not None
        visited = min(len(data.train), self.reference.steps * self.reference.batch_size)
        candidates = data.sampler(len(data.train), mixed_seed(run.seed, 2), 0, visited)
        pool = data.subset(candidates)
        self.scores = torch.stack(
            [self._scored(pool, run, number, self.reference.steps) for number in range(self.runs)]
        )
        indices = candidates[highest(self.scores.mean(0), self.keep, self.offset)]
        if len(indices) < len(candidates):
            self.pruned()
        return data.subset(indices)

    def _scored(self, pool: Data, run: Run, number: int, steps: int) -> Tensor:
        """Computes the scores [examples] of the pool by one fresh network after ``scout * steps`` steps.

        The schedule is its own: the first tenth of the run's would be its warm-up, in which little is learned.
        """
        seed = mixed_seed(run.seed, 4, number)
        scout = run.scout(Stack({}), seed=seed, steps=max(1, round(self.scout * steps)))
        untrained = scout.train(scout.recipe.steps)[0]
        scout.model.eval()
        transform = pool.test_transform or pool.transform  # no augmentation
        size = scout.recipe.batch_size
        scores, sums = [], dict[str, float]()
        for start in range(0, len(pool.train), size):
            chosen = torch.arange(start, min(start + size, len(pool.train)))
            examples = transform(pool.train[chosen], generator(seed, start))
            batch = {name: tensor.to(scout.device) for name, tensor in examples.items()}
            with torch.no_grad(), scout.autocast():
                outputs = run.baseline.forward(scout.model, batch)
            losses, norms = losses_and_scores(run.baseline, outputs, batch)
            for name, values in {"loss": losses, **run.baseline.metrics(outputs, batch)}.items():
                sums[name] = sums.get(name, 0.0) + values.detach().double().sum().item()
            scores.append(norms.cpu())
        means = {name: total / len(pool.train) for name, total in sums.items()}
        self.scouts.append({**means, "loss_over_untrained": means["loss"] / untrained})
        return torch.cat(scores)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"prunes the data": self.pruned}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the scores, the costs, and what the scouts had learned when they scored: their mean loss and metrics
        on the examples, and that loss over an untrained network's, which is 1 at chance."""
        if self.keep == 1:
            return {}
        assert self.reference is not None
        examples = self.reference.batch_size * self.reference.steps
        cost = self.runs * (self.scout + self.scores.shape[1] / examples / 3)  # a forward pass is a third of a step
        return {
            "largest_score": self.scores.max().item(),
            "scoring_cost_in_runs": cost,
            **{f"scout_{name}": mean(scout[name] for scout in self.scouts) for name in self.scouts[0]},
        }
