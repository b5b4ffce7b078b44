"""Data pruning: each example gets a score once, before training, and the run is made on a part of them alone.

    candidates: what the reference would see ── score ── ``keep`` of them ── the run

The run has either the reference's steps, in which it sees what is kept more often, or with ``shorter`` fewer: as many
passes over what is kept as the reference makes over all. Scoring is set-up: it is on the clock, unless a file
(:mod:`techniques.importance_sampling.shared.saved_sets`) has the choice of an earlier run.

For ``grand`` and ``ssl_prototypes``, which differ in the score; ``el2n`` has :func:`shortened` from here. The controls
of the first two are ``order=easy`` and ``order=random``: what a score is worth is what it wins over as many examples at
random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from suite.loop.data import Data, generator, mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from techniques.importance_sampling.shared.saved_sets import kept_by, pruned_set, save

Order = Literal["hard", "easy", "random"]


def highest(ranking: Tensor, count: int, skipped: int = 0) -> Tensor:
    """Returns ascending indices of the ``count`` highest of ``ranking`` [examples] once the ``skipped`` highest are
    left out; of equal ones the earlier ranks higher."""
    order = ranking.argsort(descending=True, stable=True)
    return order[skipped : skipped + count].sort().values


def share_of(examples: int, keep: float) -> int:
    """Counts how many examples the share ``keep`` is, at least one."""
    return max(1, round(keep * examples))


def shortened(recipe: Recipe, share: float) -> Recipe:
    """Returns the recipe with ``share`` of its steps, rounded up."""
    return replace(recipe, steps=math.ceil(share * recipe.steps))


@dataclass
class DataPruning(Technique):
    """Trains on the share ``keep`` of the examples: those of the highest scores (``order=hard``), of the lowest
    (``easy``), or any (``random``, which scores none).

    ``shorter``: for ``keep`` of the steps. ``saved``: the file with the choice; written where it is missing, else taken
    as it is, whatever the run's seed.
    """

    keep: float = 0.5
    order: Order = "hard"
    shorter: bool = False
    saved: str = ""

    zero_strength: ClassVar[Mapping[str, Any]] = {"keep": 1.0}

    reference: Recipe | None = field(init=False, repr=False, default=None)  # the recipe before it is shortened
    scores: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0))
    candidates: int = field(init=False, repr=False, default=0)
    pruned: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is the share of the examples to train on, in (0, 1], not {self.keep}")

    def score(self, pool: Data, run: Run) -> Tensor:
        """Returns the difficulty of each training example of ``pool`` [examples]; ``run`` is being set up."""
        raise NotImplementedError

    def chosen(self, ranking: Tensor, pool: Data) -> Tensor:
        """Returns ascending positions in ``pool`` of the examples to keep: the highest of ``ranking`` [examples]."""
        return highest(ranking, share_of(len(ranking), self.keep))

    def recipe(self, recipe: Recipe) -> Recipe:
        self.reference = recipe
        return shortened(recipe, self.keep) if self.shorter else recipe

    def data(self, data: Data, run: Run) -> Data:
        if self.is_reference:
            return data
        assert self.reference is not None
        visited = min(len(data.train), self.reference.steps * self.reference.batch_size)
        candidates = data.sampler(len(data.train), mixed_seed(run.seed, 2), 0, visited).sort().values
        self.candidates = len(candidates)
        indices = self._saved(data)
        if indices is None:
            pool = data.subset(candidates)
            indices = candidates[self.chosen(self._ranking(pool, run), pool)]
            if self.saved:
                save(pruned_set(data, indices, *self._description(), run.seed), Path(self.saved).expanduser())
        if len(indices) < len(candidates):
            self.pruned()
        return data.subset(indices)

    def _ranking(self, pool: Data, run: Run) -> Tensor:
        if self.order == "random":
            return torch.rand(len(pool.train), generator=generator(run.seed, 6))
        self.scores = self.score(pool, run)
        return self.scores if self.order == "hard" else -self.scores

    def _saved(self, data: Data) -> Tensor | None:
        return kept_by(Path(self.saved).expanduser(), data, *self._description()) if self.saved else None

    def _description(self) -> tuple[str, dict[str, str], int]:
        """Returns the technique's id, which is the name of its folder, the settings that decide the choice, and the
        number of candidates."""
        names = [
            attribute.name
            for attribute in fields(self)
            if attribute.init and attribute.name not in ("saved", "shorter")
        ]
        settings = {name: str(getattr(self, name)) for name in names}
        return type(self).__module__.split(".")[-2], settings, self.candidates

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"prunes the data": self.pruned}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the test scores over those of a run of the same seed and length on as many examples at random:
        ``loss_over_random`` and, where there are classes, ``accuracy_over_random``. Of the technique alone."""
        alone = len(run.technique.techniques) == 1
        if self.is_reference or self.order == "random" or not alone:
            return {}
        own = Stack({"control": replace(self, order="random", saved="")})
        control = run.scout(own, seed=run.seed, steps=run.job.setting.steps)
        control.train(control.recipe.steps)
        theirs = control.evaluate("test")
        return {
            f"{name}_over_random": ours / theirs[name] for name, ours in run.evaluate("test").items() if theirs[name]
        }
