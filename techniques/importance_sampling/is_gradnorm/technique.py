"""Implements importance sampling by gradient norms: look at many examples forwards, learn from those that would change
most.

Katharopoulos & Fleuret, "Not All Samples Are Created Equal: Deep Learning with Importance Sampling" (ICML 2018, arXiv
1803.00942), algorithm 1. G_i is the norm of the loss's gradient in the last pre-activations, b the batch:

    if tau > (B + 3 b) / 3 b:    of B = 3 b examples, drawn uniformly, compute G_i forwards     s_i = G_i / sum G
                                 draw b of them, with replacement, with probabilities s
                                 learn from the mean of w_i l_i                                 w_i = 1 / (B s_i)
    else:                        learn from the mean of l_i of b examples, drawn uniformly; G_i comes with it
    tau <- 0.9 tau + 0.1 / sqrt(1 - sum (s_i - u)^2 / sum s_i^2)                                u = 1 / number of s_i

A forward pass is taken for a third of a step: the threshold is what a step then costs, over a uniform one's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.loop.data import Batch, generator, mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.importance_sampling.shared.importance import check_single, importance_weights, scored_forward, scores_of

STREAM = 7  # of the seed, for what is drawn; the run's own streams come before


def probabilities(scores: Tensor) -> Tensor:
    """Returns s_i = G_i / sum G, float64 [examples] on the CPU; uniform where that says nothing: all scores 0, or one
    is not finite."""
    scores = scores.double().cpu()
    total = scores.sum()
    return scores / total if 0 < total < math.inf else torch.full_like(scores, 1 / len(scores))


def variance_reduction(s: Tensor) -> float:
    """Computes tau, equation 26: 1 where all are alike. 1 - sum (s_i - u)^2 / sum s_i^2 is u / sum s_i^2, as s sums to
    1.

    Its square is by what the variance of a gradient of one example shrinks: E[G^2] / E[G]^2, with G the norm of its
    gradient and a zero mean.
    """
    return math.sqrt(len(s) * s.square().sum().item())


def drawn(s: Tensor, count: int, *seed: int) -> Tensor:
    """Draws, as int64 [count]: examples drawn with replacement with probabilities ``s`` [examples], of the seed
    alone."""
    return torch.multinomial(s, count, replacement=True, generator=generator(*seed))


@dataclass
class GradientNormSampling(Technique):
    """``presample`` is B / b, ``momentum`` that of tau; ``threshold`` is what tau must exceed, (B + 3 b) / 3 b where it
    is None: 0 samples from the second step on, infinity never."""

    presample: int = 3
    momentum: float = 0.9
    threshold: float | None = None
    zero_strength: ClassVar[Mapping[str, Any]] = {"threshold": math.inf}

    tau: float = field(init=False, default=0.0)
    sampled: int = field(init=False, repr=False, default=0)  # steps
    scored: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.presample < 2:
            raise ValueError(f"presample is B / b: of 2 or more batches one is drawn, not of {self.presample}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.threshold is not None and not self.threshold >= 0:
            raise ValueError(
                f"threshold is what tau, 1 or more in the end, must exceed: 0 samples in every step but the first, inf "
                f"in none; not {self.threshold}"
            )

    @property
    def gate(self) -> float:
        """Returns what tau must exceed."""
        return 1 + self.presample / 3 if self.threshold is None else self.threshold

    def update(self, run: Run, batch: Batch) -> None:
        if self.is_reference:
            super().update(run, batch)
            return
        check_single(run, "is_gradnorm")
        run.optimizer.zero_grad(set_to_none=True)
        if self.tau > self.gate:
            loss, scores = self.sampled_forward(run, batch)
        else:
            loss, scores = scored_forward(run, batch)
        run.backward(loss)
        run.loss = loss.detach()
        run.apply_gradients()
        self.tau = self.momentum * self.tau + (1 - self.momentum) * variance_reduction(probabilities(scores))
        self.scored()

    def sampled_forward(self, run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the weighted loss of examples drawn from the batch and ``presample`` - 1 more; the scores of all
        these."""
        pool, indices = self.pool(run, batch)
        scores = scores_of(run, pool)
        s = probabilities(scores)
        chosen = drawn(s, len(run.indices), run.seed, STREAM, run.step)
        run.indices = indices[chosen]
        examples = {name: tensor[chosen.to(tensor.device)] for name, tensor in pool.items()}
        loss, _ = scored_forward(run, examples, importance_weights(s, chosen))
        self.sampled += 1
        return loss, scores

    def pool(self, run: Run, batch: Batch) -> tuple[Batch, Tensor]:
        """Returns B examples and their indices: the batch, and more in an order of their own."""
        more = (self.presample - 1) * len(run.indices)
        further, indices = run.data.batch(mixed_seed(run.seed, STREAM), run.step * more, more)
        pool = {name: torch.cat([tensor, further[name].to(tensor.device)]) for name, tensor in batch.items()}
        return pool, torch.cat([run.indices, indices])

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"scores examples": self.scored}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the last tau, and the share of the steps that sampled."""
        return {"tau": self.tau, "sampled_share": self.sampled / run.step}

    def state(self) -> dict[str, Any]:
        return {"tau": self.tau, "sampled": self.sampled}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.tau, self.sampled = state["tau"], state["sampled"]
