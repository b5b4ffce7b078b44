"""Implements GraNd: train only on the examples with the largest expected gradient, before anything is learned.

Paul, Ganguli & Dziugaite, "Deep Learning on a Data Diet: Finding Important Examples Early in Training" (NeurIPS 2021,
arXiv 2107.07075), definition 2.1: the score of an example is E ||grad_w l(f(x), y)||_2, the norm of its own loss's
gradient in all weights, averaged over initialisations; keep the highest-scored fraction and train from scratch,
for as many steps as on all examples (the authors' github.com/mansheej/data_diet, scripts/run_keep_max_scores.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.loop.data import Batch, Data, generator, mixed_seed
from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.importance_sampling.shared.data_pruning import DataPruning, highest, share_of

Losses = Callable[[nn.Module, Batch], Tensor]
NUMBERS_AT_ONCE = 2**27  # of gradients: half a gigabyte


def gradient_norms(model: nn.Module, losses: Losses, batch: Batch) -> Tensor:
    """Computes ||grad l||_2 of each example of ``batch``, float32 [batch], in all parameters that want gradients.

    ``losses(model, batch)`` are the examples' losses [batch]. Gradients of several examples are made at once
    (torch.func), with attention in matrix products, since fused kernels have no rule for that; where a model has other
    code without one (control flow by values), one after the other.
    """
    whole = _Whole(model, losses)
    parameters = {name: parameter.detach() for name, parameter in whole.named_parameters() if parameter.requires_grad}

    def loss(parameters: dict[str, Tensor], example: Batch) -> Tensor:
        return functional_call(whole, parameters, {name: value[None] for name, value in example.items()}).sum()

    def norm(example: Batch) -> Tensor:
        gradients = grad(loss)(parameters, example)
        return torch.stack([gradient.float().square().sum() for gradient in gradients.values()]).sum().sqrt()

    at_once = max(1, NUMBERS_AT_ONCE // sum(parameter.numel() for parameter in parameters.values()))
    with sdpa_kernel(SDPBackend.MATH):
        try:
            return vmap(norm, chunk_size=at_once)(batch).detach()
        except RuntimeError:
            count = len(next(iter(batch.values())))
            return torch.stack(
                [norm({name: tensor[i] for name, tensor in batch.items()}) for i in range(count)]
            ).detach()


class _Whole(nn.Module):
    """Wraps a model with its losses, which functional_call can give other parameters."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, batch: Batch) -> Tensor:
        return self.losses(self.model, batch)


@dataclass
class Grand(DataPruning):
    """``runs`` networks score the examples: at initialisation, or after a short run of ``scout`` of the steps, with a
    whole schedule of its own. The share ``offset`` with the highest scores is left out first."""

    runs: int = 2
    scout: float = 0.0
    offset: float = 0.0

    by_network: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0, 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.offset <= 1 - self.keep:
            raise ValueError(f"offset, the hardest share to leave out, must lie in [0, 1 - keep], not {self.offset}")
        if self.runs < 1 or not 0 <= self.scout <= 1:
            raise ValueError(f"runs must be at least 1 and scout in [0, 1], not {self.runs} and {self.scout}")

    def score(self, pool: Data, run: Run) -> Tensor:
        self.by_network = torch.stack([self._of_network(pool, run, number) for number in range(self.runs)])
        return self.by_network.mean(0)

    def chosen(self, ranking: Tensor, pool: Data) -> Tensor:
        count = len(ranking)
        return highest(ranking, share_of(count, self.keep), round(self.offset * count))

    def _of_network(self, pool: Data, run: Run, number: int) -> Tensor:
        """Computes the scores [examples] by one fresh network, in full precision, without augmentation and dropout."""
        assert self.reference is not None
        seed, steps = mixed_seed(run.seed, 4, number), round(self.scout * self.reference.steps)
        network = run.scout(Stack({}), seed=seed, steps=max(1, steps))
        network.train(steps)
        model = network.model.eval()
        transform = pool.test_transform or pool.transform
        size = network.recipe.batch_size
        scores = []
        for start in range(0, len(pool.train), size):
            rows = torch.arange(start, min(start + size, len(pool.train)))
            examples = transform(pool.train[rows], generator(seed, start))
            batch = {name: tensor.to(network.device) for name, tensor in examples.items()}
            scores.append(gradient_norms(model, self._losses(run), batch).cpu())
        return torch.cat(scores)

    @staticmethod
    def _losses(run: Run) -> Losses:
        return lambda model, batch: run.baseline.losses(run.baseline.forward(model, batch), batch)

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns, beside those of all data pruning: ``scoring_cost_in_runs``, what the scoring cost in reference runs,
        a gradient like a step's; ``agreement``: Spearman's correlation of two networks' scores, on average."""
        probes = dict(super().probes(run))
        if self.is_reference or not len(self.by_network):
            return probes
        assert self.reference is not None
        seen = self.reference.steps * self.reference.batch_size
        probes["scoring_cost_in_runs"] = self.runs * (self.scout + self.candidates / seen)
        if self.runs > 1:
            probes["agreement"] = fmean(spearmanr(*pair).statistic for pair in combinations(self.by_network.numpy(), 2))
        return probes
