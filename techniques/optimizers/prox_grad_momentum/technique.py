"""Implements APGnc: proximal gradient steps with momentum that is kept only where it lowers the objective F = f + g.

Li, Zhou, Liang & Varshney, "Convergence Analysis of Proximal Gradient with Momentum for Nonconvex Optimization" (ICML
2017, arXiv 1705.04925), Algorithm 2 (after Yao & Kwok 2016); f smooth, g with a cheap proximal map, both perhaps not
convex, eta < 1/L:

    x_k = prox_{eta g}(y_k - eta grad f(y_k))        v_k = x_k + k / (k + 3) (x_k - x_{k-1})
    y_{k+1} = argmin of F over {x_k, v_k}

so that F(x_{k+1}) <= F(y_{k+1}) <= F(x_k). In a network g makes weights, or whole units, exactly zero: the l1 norm, or
the sum of the norms of rows (group lasso). There f is the loss on a batch, and both values are taken on one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.device.random_state import unchanged_randomness
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from suite.model.anatomy import is_transposed
from techniques.optimizers.prox_grad_momentum.iterations import Penalty
from techniques.optimizers.prox_grad_momentum.optimizer import APGnc


@dataclass
class ProxGradMomentum(Technique):
    """Puts APGnc in place of AdamW and of its decay; the penalty is on the weights of the blocks' MLPs.

    ``penalty="group"`` penalises the hidden units' rows of incoming weights. ``factor`` multiplies the learning rate.
    """

    factor: float = 100.0
    strength: float = 1e-3
    penalty: Penalty = "l1"
    choices: int = field(default=0, init=False)
    extrapolations: int = field(default=0, init=False)
    penalised: Act = field(init=False, repr=False, default_factory=Act)
    chosen: Act = field(init=False, repr=False, default_factory=partial(Act, "run"))

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        APGnc([torch.zeros(1)], 1.0, self.strength, self.penalty)  # checks these

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, learning_rate=recipe.learning_rate * self.factor, weight_decay=0.0)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        units = self._units(run)
        if not units:
            raise ValueError(
                "prox_grad_momentum penalises the linear layers of the blocks' MLPs, and this model has none (do its "
                "experts hold their weights together?); take another model"
            )
        penalised_groups = []
        for group in groups:
            parts: dict[int | None, list[Tensor]] = {}
            for parameter in group["params"]:
                parts.setdefault(units.get(id(parameter)), []).append(parameter)
            for along, parameters in parts.items():
                own = {} if along is None else {"strength": self.strength, "kind": self.penalty, "units": along}
                penalised_groups.append(group | {"params": parameters} | own)
                if own:
                    self.penalised()
        return penalised_groups

    def _units(self, run: Run) -> dict[int, int]:
        """Returns the penalised weights by id, with the dimension along which their output units lie."""
        linears = {}
        for block in run.anatomy.every_block:
            for part in block.mlp_linears:
                if self.penalty == "l1" or part != block.mlp_output:
                    linears[id(part.module.weight)] = int(is_transposed(part.module))
        return linears

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> APGnc:
        return APGnc(parameters, lr=recipe.learning_rate)

    def update(self, run: Run, batch: Batch) -> None:
        optimizer = run.optimizer
        assert isinstance(optimizer, APGnc)
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []

        def closure() -> Tensor:
            with replayed(run) if not losses else nullcontext():
                losses.append(run.forward(batch))
            return losses[-1]

        loss = optimizer.choose(closure, partial(mean_over_ranks, run))
        if len(losses) > 1:
            self.choices += 1
            self.chosen()
        self.extrapolations += optimizer.extrapolated
        losses.clear()
        run.backward(loss)
        run.loss = loss.detach()
        run.apply_gradients()
        optimizer.restore()  # where the update was skipped

    def sites(self, run: Run) -> Mapping[str, Site]:
        acts = {"penalises the MLPs": self.penalised, "chooses between x and v": self.chosen}
        return {**super().sites(run), **acts}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Shares of penalised weights and units that are exactly 0, and of steps that began at v."""
        zeros = weights = dead = all_units = 0
        for group in run.optimizer.param_groups:
            if group.get("strength"):
                for parameter in group["params"]:
                    zeros, weights = zeros + int((parameter == 0).sum()), weights + parameter.numel()
                    alive = parameter.ne(0).any(1 - group["units"])
                    dead, all_units = dead + int((~alive).sum()), all_units + alive.numel()
        measured = {}
        if self.choices:
            measured["extrapolated_share"] = self.extrapolations / self.choices
        if weights:
            measured |= {"zero_share": zeros / weights, "zero_units_share": dead / all_units}
        return measured

    def state(self) -> dict[str, Any]:
        return {"choices": self.choices, "extrapolations": self.extrapolations}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.choices, self.extrapolations = state["choices"], state["extrapolations"]


def mean_over_ranks(run: Run, loss: Tensor) -> Tensor:
    """The mean of the ranks' losses, without a graph."""
    mean = loss.detach().clone()
    if run.world_size > 1:
        torch.distributed.all_reduce(mean.div_(run.world_size), group=run.group)
    return mean


@contextmanager
def replayed(run: Run) -> Iterator[None]:
    """Draws random numbers in such a way that they are drawn again afterwards: both evaluations see one dropout."""
    own = run.generator.get_state()
    with unchanged_randomness(run.device):
        yield
    run.generator.set_state(own)
