"""RAIS: draws examples by what their gradients were when they were last learned from, and by how uncertain that is.

Johnson & Guestrin, "Training Deep Models Faster with Robust, Approximate Importance Sampling" (NeurIPS 2018). A step
measures the gradients' norms of its own examples alone. What is known of the others is as old as their last visit, so
p comes from features s_i of those visits and from a margin that is fitted to how far off such features have been
(:mod:`techniques.importance_sampling.rais.robust`):

    p_i ~ <c, s_i> + k <d, s_i>          loss = mean of l_i / (n p_i)          rate = schedule * gain ratio

No step takes a forward pass for this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from suite.loop.data import Batch, Data, generator
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.importance_sampling.rais.robust import fitted, gain_ratio, robust_probabilities
from techniques.importance_sampling.shared.importance import check_single, importance_weights, scored_forward

STREAM = 7  # of the order's seed, for what is drawn
LATEST = 0.5  # the weight of the latest norm in an example's average
FEATURES = 3


def visit(features: Tensor, indices: Tensor, norms: Tensor) -> Tensor:
    """Writes into the features of examples, float64 [examples, 3], what a batch measured, and returns those of the
    batch [batch, 3] as they were before: 1 for what has been seen, the latest norm, an average of all. int64 and
    float64 [batch]; of an example that stands in the batch twice, the last norm."""
    before = features[indices]
    seen, _, average = before.T
    average = torch.where(seen > 0, (1 - LATEST) * average + LATEST * norms, norms)
    rows = torch.stack([torch.ones_like(norms), norms, average], dim=1)
    features.numpy()[indices.numpy()] = rows.numpy()  # in order, unlike torch
    return before


class Table(NamedTuple):
    """Holds the probabilities p of examples at ``position`` of the run's order and behind it."""

    position: int
    p: Tensor

    def drawn(self, seed: int, position: int, count: int) -> Tensor:
        """Draws int64 [count], with replacement, from seed and position alone."""
        uniform = torch.rand(count, generator=generator(seed, position, STREAM), dtype=torch.float64)
        total = self.p.cumsum(0)
        return torch.searchsorted(total[:-1], uniform * total[-1], right=True)


@dataclass
class Rais(Technique):
    """p is fitted every ``refit`` steps, to what these measured, once every example has been seen: until then the run
    is the reference's. A share ``uniform`` of the draws goes by no norm; ``scale_rate`` is whether the rate grows.

    A batch may be prepared while the one before it trains, so that a new p begins with the next but one.
    """

    refit: int = 10
    uniform: float = 0.1
    scale_rate: bool = True
    zero_strength: ClassVar[Mapping[str, Any]] = {"uniform": 1.0}

    tables: list[Table] = field(init=False, repr=False, default_factory=list)  # the latest two
    measured: list[tuple[Tensor, Tensor, Tensor]] = field(init=False, repr=False, default_factory=list)  # since a fit
    features: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0, FEATURES))
    gain: float = field(init=False, default=1.0)
    effective: float = field(init=False, repr=False, default=0.0)  # iterations
    draws: Act = field(init=False, repr=False, default_factory=lambda: Act("run"))

    def __post_init__(self) -> None:
        if self.refit < 1:
            raise ValueError(f"refit is a number of steps, 1 or more, not {self.refit}")
        if not 0 < self.uniform <= 1:
            raise ValueError(
                "uniform is a share of the draws in (0, 1]: with none, what is never drawn biases the mean; with all "
                f"it is the reference; not {self.uniform}"
            )

    def data(self, data: Data, run: Run) -> Data:
        if self.is_reference:
            return data

        def sampler(examples: int, seed: int, position: int, count: int) -> Tensor:
            table = self.at(position)
            return table.drawn(seed, position, count) if table else data.sampler(examples, seed, position, count)

        return replace(data, sampler=sampler)

    def at(self, position: int) -> Table | None:
        """Returns what the examples at a position are drawn by; None for the reference's own order."""
        return next((table for table in reversed(self.tables) if table.position <= position), None)

    def update(self, run: Run, batch: Batch) -> None:
        if self.is_reference:
            super().update(run, batch)
            return
        check_single(run, "rais")
        run.optimizer.zero_grad(set_to_none=True)
        table = self.at(run.position)
        weights = importance_weights(table.p, run.indices) if table else None
        loss, scores = scored_forward(run, batch, weights)
        run.backward(loss)
        run.loss = loss.detach()
        for group in run.optimizer.param_groups if self.scale_rate else ():
            group["lr"] *= self.gain
        run.apply_gradients()
        self.effective += self.gain
        self.measured.append((run.indices, torch.ones(len(scores)) if weights is None else weights, scores))
        if table:
            self.draws()

    def after_step(self, run: Run) -> None:
        if self.is_reference or run.step % self.refit:
            return
        batches = [(indices, weights.double(), scores.double().cpu()) for indices, weights, scores in self.measured]
        self.measured.clear()
        _, *of_all = zip(*batches, strict=True)
        weights, norms = map(torch.cat, of_all)
        if not norms.isfinite().all() or not norms.any():
            return
        if not len(self.features):
            self.features = torch.zeros(len(run.data.train), FEATURES, dtype=torch.float64)
        before = torch.cat([visit(self.features, batch, scores) for batch, _, scores in batches])
        known = before[:, 0] > 0
        if self.features[:, 0].all() and known.sum() >= 2 * FEATURES:  # as many as c and d have numbers
            ellipsoid = fitted(before[known], norms[known], weights[known], self.features.mean(0))
            p = robust_probabilities(self.features, *ellipsoid, self.uniform)
            self.tables = [*self.tables[-1:], Table(run.position + run.recipe.batch_size, p)]
            self.gain = gain_ratio(norms, weights, run.recipe.batch_size)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"draws by the norms": self.draws}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the effective iterations over iterations: the average gain ratio."""
        return {"effective_iterations": self.effective / run.step}

    def state(self) -> dict[str, Any]:
        return {
            "tables": [tuple(table) for table in self.tables],
            "measured": list(self.measured),
            "features": self.features,
            "gain": self.gain,
            "effective": self.effective,
        }

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.tables = [Table(position, p.cpu()) for position, p in state["tables"]]
        self.measured = [(indices.cpu(), weights.cpu(), scores) for indices, weights, scores in state["measured"]]
        self.features = state["features"].cpu()
        self.gain, self.effective = state["gain"], state["effective"]
