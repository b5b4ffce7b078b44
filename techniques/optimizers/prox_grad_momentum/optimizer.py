"""Implements APGnc as a torch optimizer, of which both losses of a step are on one batch. technique.py has the
paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from suite.kernels.optimizer import wide_dtype
from suite.kernels.refusals import at_least_0, refuse_complex, refuse_gradients
from techniques.optimizers.prox_grad_momentum.iterations import Penalty, penalty, proximal


class APGnc(torch.optim.Optimizer):
    """Implements APGnc. Between steps the parameters are x_k, with its exact zeros; the state is ``previous``, x_{k-1}.

    Groups have ``strength`` (0: no penalty), ``kind`` and ``units``, the dimension along which a matrix's units lie.
    ``step(closure)`` takes a closure that returns the smooth loss with its graph, and does the rest. To do something
    between backward pass and update, call :meth:`choose`, go backward through what it returns, and call ``step()``.
    """

    def __init__(self, params: Any, lr: float, strength: float = 0.0, kind: Penalty = "l1", units: int = 0) -> None:
        self._x: dict[Tensor, Tensor] = {}  # the memory of x while a parameter stands at v
        super().__init__(params, {"lr": lr, "strength": strength, "kind": kind, "units": units, "k": 0})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the state, and is called by ``load_state_dict``, copies and pickles too."""
        super().__setstate__(state)
        self._x = {}

    def __getstate__(self) -> dict[str, Any]:
        self.restore()  # a copy has no memory of x
        return super().__getstate__()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError for hyper-parameters out of range, TypeError for complex parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        lr, strength, kind = group["lr"], group["strength"], group["kind"]
        if not at_least_0(lr, strength):
            raise ValueError(f"APGnc needs lr, strength >= 0; got {lr}, {strength}")
        if kind not in get_args(Penalty):
            raise ValueError(f"kind, the penalty, must be l1 or group, not {kind!r}")
        refuse_complex(self, group["params"])

    def choose(self, closure: Callable[[], Tensor], of_all: Callable[[Tensor], Tensor] = Tensor.detach) -> Tensor:
        """Moves the parameters to y, the better of x and v on the closure's batch; returns the loss there. Of several
        ranks ``of_all`` makes their mean of a loss, so that all choose the same.

        Both losses keep their graphs until the choice is made: one further evaluation, and no second one of the better.
        """
        self.restore()
        loss = closure()
        if not self.state:
            return loss
        value = of_all(loss) + self.penalties()
        self._extrapolate()
        try:
            ahead = closure()
            better = bool(of_all(ahead) + self.penalties() < value)
        except BaseException:
            self.restore()
            raise
        if better:
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
        """Tells whether the parameters stand at v."""
        return bool(self._x)

    @torch.no_grad()
    def penalties(self) -> Tensor:
        """Returns g at the parameters; a scalar."""
        total = torch.zeros(())
        for group in self.param_groups:
            if group["strength"]:
                for parameter in group["params"]:
                    total = total + group["strength"] * penalty(parameter, group["kind"], group["units"]).to(
                        total.device
                    )
        return total

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            self.zero_grad()
            try:
                with torch.enable_grad():
                    loss = self.choose(closure)
                    loss.backward()
            except BaseException:
                self.restore()
                raise
        self._update()
        return loss

    @torch.no_grad()
    def _update(self) -> None:
        refuse_gradients(self)
        ahead = {parameter: parameter.data for parameter in self._x}
        self.restore()
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                wide = wide_dtype(parameter)
                moved = ahead.get(parameter, parameter.data).to(wide) - group["lr"] * parameter.grad.to(wide)
                if group["strength"]:
                    moved = proximal(moved, group["lr"] * group["strength"], group["kind"], group["units"])
                if parameter in self.state:
                    self.state[parameter]["previous"].copy_(parameter)
                else:
                    self.state[parameter]["previous"] = parameter.clone()
                parameter.copy_(moved)
