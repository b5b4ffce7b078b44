"""APGnc: proximal gradient steps with momentum that is kept only where it lowers the objective F = f + g.

Li, Zhou, Liang & Varshney, "Convergence Analysis of Proximal Gradient with Momentum for Nonconvex Optimization" (ICML
2017, arXiv 1705.04925), Algorithm 2 (after Yao & Kwok 2016); f smooth, g with a cheap proximal map, both perhaps not
convex, eta < 1/L:

    x_k = prox_{eta g}(y_k - eta grad f(y_k))        v_k = x_k + k / (k + 3) (x_k - x_{k-1})
    y_{k+1} = argmin of F over {x_k, v_k}

so that F(x_{k+1}) <= F(y_{k+1}) <= F(x_k). In a network g makes weights, or whole units, exactly zero: the l1 norm, or
the sum of the norms of rows (group lasso). There f is the loss on a batch, and both values are taken on one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from suite.contract.data import Batch
from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from suite.model.anatomy import is_transposed
from techniques.optimizers.nesterov_agd.technique import head_regression

Penalty = Literal["l1", "group"]

STEPS = 200  # of the check on the trained head


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """The proximal map of threshold ||x||_1: towards 0 by the threshold, and exactly 0 within it."""
    return x.sign() * (x.abs() - threshold).clamp(min=0)


def group_threshold(x: Tensor, threshold: float, units: int = 0) -> Tensor:
    """The proximal map of threshold times the sum of the norms of a matrix's slices along the dimension ``units``."""
    norms = torch.linalg.vector_norm(x, dim=1 - units, keepdim=True)
    return x * (1 - threshold / norms.clamp(min=torch.finfo(x.dtype).tiny)).clamp(min=0)


def penalty(x: Tensor, kind: Penalty, units: int = 0) -> Tensor:
    """||x||_1, or the sum of the slices' norms; a scalar."""
    return x.abs().sum() if kind == "l1" else torch.linalg.vector_norm(x, dim=1 - units).sum()


def proximal(x: Tensor, threshold: float, kind: Penalty, units: int = 0) -> Tensor:
    """The proximal map of threshold times :func:`penalty`."""
    return soft_threshold(x, threshold) if kind == "l1" else group_threshold(x, threshold, units)


class Iteration(NamedTuple):
    """x_k and y_{k+1} with F of each; whether y_{k+1} is the extrapolated point."""

    x: Tensor
    y: Tensor
    value_x: float
    value_y: float
    extrapolated: bool


def apgnc(
    objective: Callable[[Tensor], float],
    gradient: Callable[[Tensor], Tensor],
    prox: Callable[[Tensor, float], Tensor],
    start: Tensor,
    rate: float,
    momentum: bool = True,
) -> Iterator[Iteration]:
    """Iterations 1, 2, ...; ``objective`` is F, ``gradient`` that of f, ``prox(x, eta)`` the map of eta g.

    Without ``momentum`` it is the proximal gradient method.
    """
    x = y = start
    k = 0
    while True:
        k, before, x = k + 1, x, prox(y - rate * gradient(y), rate)
        v = x + k / (k + 3) * (x - before)
        values = objective(x), objective(v) if momentum else float("inf")
        extrapolated = values[1] < values[0]
        y = v if extrapolated else x
        yield Iteration(x, y, values[0], min(values), extrapolated)


class APGnc(torch.optim.Optimizer):
    """APGnc. Between steps the parameters are x_k, with its exact zeros; the state is ``previous``, x_{k-1}.

    Groups have ``strength`` (0: no penalty), ``kind`` and ``units``, the dimension along which a matrix's units lie.
    ``step(closure)`` takes a closure that returns the smooth loss with its graph, and does the rest. To do something
    between backward pass and update, call :meth:`choose`, go backward through what it returns, and call ``step()``.
    """

    def __init__(self, params: Any, lr: float, strength: float = 0.0, kind: Penalty = "l1", units: int = 0) -> None:
        if lr < 0 or strength < 0:
            raise ValueError(f"APGnc needs lr, strength >= 0; got {lr}, {strength}")
        if kind not in get_args(Penalty):
            raise ValueError(f"kind, the penalty, must be l1 or group, not {kind!r}")
        super().__init__(params, {"lr": lr, "strength": strength, "kind": kind, "units": units, "k": 0})
        self._x: dict[Tensor, Tensor] = {}  # the memory of x while a parameter stands at v

    def choose(self, closure: Callable[[], Tensor]) -> Tensor:
        """Moves the parameters to y, the better of x and v on the closure's batch; returns the loss there.

        Both losses keep their graphs until the choice is made: one further evaluation, and no second one of the better.
        """
        self.restore()
        loss = closure()
        if not self.state:
            return loss
        value = loss.detach() + self.penalties()
        self._extrapolate()
        ahead = closure()
        if ahead.detach() + self.penalties() < value:
            return ahead
        self.restore()
        return loss

    @torch.no_grad()
    def _extrapolate(self) -> None:
        for group in self.param_groups:
            momentum = group["k"] / (group["k"] + 3)
            for parameter in group["params"]:
                if parameter in self.state:
                    # Other memory, not other contents: what the first loss's graph saved stays what it was.
                    x = self._x[parameter] = parameter.data
                    parameter.data = x + momentum * (x - self.state[parameter]["previous"])

    def restore(self) -> None:
        """Moves the parameters back to x."""
        for parameter, x in self._x.items():
            parameter.data = x
        self._x.clear()

    @property
    def extrapolated(self) -> bool:
        """Whether the parameters stand at v."""
        return bool(self._x)

    @torch.no_grad()
    def penalties(self) -> Tensor:
        """g at the parameters; a scalar."""
        total = torch.zeros(())
        for group in self.param_groups:
            if group["strength"]:
                for each in group["params"]:
                    total = total + group["strength"] * penalty(each, group["kind"], group["units"]).to(total.device)
        return total

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            self.zero_grad()
            with torch.enable_grad():
                loss = self.choose(closure)
                loss.backward()
        self._update()
        return loss

    @torch.no_grad()
    def _update(self) -> None:
        ahead = {parameter: parameter.data for parameter in self._x}
        self.restore()
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                moved = ahead.get(parameter, parameter.data) - group["lr"] * parameter.grad
                if group["strength"]:
                    moved = proximal(moved, group["lr"] * group["strength"], group["kind"], group["units"])
                if parameter in self.state:
                    self.state[parameter]["previous"].copy_(parameter)
                else:
                    self.state[parameter]["previous"] = parameter.clone()
                parameter.copy_(moved)


@dataclass
class ProxGradMomentum(Technique):
    """APGnc in place of AdamW and of its decay; the penalty is on the weights of the blocks' MLPs.

    ``penalty="group"`` penalises the hidden units' rows of incoming weights. ``factor`` multiplies the learning rate.
    """

    factor: float = 100.0
    strength: float = 1e-3
    penalty: Penalty = "l1"
    choices: int = field(default=0, init=False)
    extrapolations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor multiplies the learning rate and must be positive, not {self.factor}")
        APGnc([torch.zeros(1)], 1.0, self.strength, self.penalty)  # checks these

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, learning_rate=recipe.learning_rate * self.factor, weight_decay=0.0)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        units = self._units(run)
        made = []
        for group in groups:
            parts: dict[int | None, list[Tensor]] = {}
            for parameter in group["params"]:
                parts.setdefault(units.get(id(parameter)), []).append(parameter)
            for along, parameters in parts.items():
                own = {} if along is None else {"strength": self.strength, "kind": self.penalty, "units": along}
                made.append(group | {"params": parameters} | own)
        return made

    def _units(self, run: Run) -> dict[int, int]:
        """The penalised weights by id, with the dimension along which their output units lie."""
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
            with replayed(run) if not losses else undisturbed():
                losses.append(run.forward(batch))
            return losses[-1]

        loss = optimizer.choose(closure)
        self.choices += len(losses) > 1
        self.extrapolations += optimizer.extrapolated
        losses.clear()
        run.backward(loss)
        run.loss = loss.detach()
        run.apply_gradients()
        optimizer.restore()  # where the update was skipped

    def probes(self, run: Run) -> Mapping[str, float]:
        """Shares of penalised weights and units that are exactly 0, and of steps that began at v; and the largest
        increase of F, in units of its first value, on the trained model's own head with an l1 norm."""
        zeros = weights = dead = all_units = 0
        for group in run.optimizer.param_groups:
            if group.get("strength"):
                for each in group["params"]:
                    zeros, weights = zeros + int((each == 0).sum()), weights + each.numel()
                    alive = each.ne(0).any(1 - group["units"])
                    dead, all_units = dead + int((~alive).sum()), all_units + alive.numel()
        found = {"largest_increase": check_monotone(*head_regression(run))}
        if self.choices:
            found["extrapolated_share"] = self.extrapolations / self.choices
        if weights:
            found |= {"zero_share": zeros / weights, "zero_units_share": dead / all_units}
        return found

    def state(self) -> dict[str, Any]:
        return {"choices": self.choices, "extrapolations": self.extrapolations}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.choices, self.extrapolations = state["choices"], state["extrapolations"]


@contextmanager
def replayed(run: Run) -> Iterator[None]:
    """Inside, random numbers are drawn that will be drawn again: a second evaluation sees the same dropout."""
    own = run.generator.get_state()
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        yield
    run.generator.set_state(own)


@contextmanager
def undisturbed() -> Iterator[None]:
    yield


def check_monotone(gram: Tensor, head: Tensor) -> float:
    """The largest of F(x_{k+1}) - F(y_{k+1}) and F(y_{k+1}) - F(x_k), in units of F(x_0): 0 or less by the theorem.

    F(W) = tr((W - W*) G (W - W*)^T) / 2 + lambda ||W||_1, with a tenth of the lambda that makes W = 0 the minimum.
    """
    rate = 0.99 / torch.linalg.eigvalsh(gram)[-1].item()
    strength = 0.1 * (head @ gram).abs().max().item()

    def gradient(weight: Tensor) -> Tensor:
        return (weight - head) @ gram

    def objective(weight: Tensor) -> float:
        return (0.5 * (gradient(weight) * (weight - head)).sum() + strength * weight.abs().sum()).item()

    start = torch.zeros_like(head)
    last = objective(start)
    unit, worst = last, -float("inf")
    reached = last
    for each in islice(
        apgnc(objective, gradient, lambda x, eta: soft_threshold(x, eta * strength), start, rate), STEPS
    ):
        worst = max(worst, each.value_x - reached, each.value_y - each.value_x)
        reached = each.value_y
    return max(0.0, worst / unit)
