"""Puts an optimizer around another: what techniques hand on from ``wrap_optimizer``, and what a user's own loop
takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class WrappedOptimizer(torch.optim.Optimizer):
    """Wraps ``optimizer`` and does as it does, apart from what a subclass overrides; what that keeps is under
    ``wrapper`` in the state.

    Groups and state are the wrapped optimizer's own, so schedulers, ``state_dict``, Accelerate and the Trainer of
    transformers take it where they take that. Raises TypeError for what is no optimizer of torch's.

        >>> class Centralized(WrappedOptimizer):
        ...     def step(self, closure=None):
        ...         for parameter in self.with_gradient():
        ...             if parameter.ndim > 1:
        ...                 parameter.grad -= parameter.grad.mean(tuple(range(1, parameter.ndim)), keepdim=True)
        ...         return super().step(closure)
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{type(self).__name__} wraps an optimizer of torch's, not a {type(optimizer).__name__}")
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self.defaults = self.optimizer.defaults

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("param_groups", "state", "step")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()
        super().__setstate__({})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if all(group is not param_group for group in self.optimizer.param_groups):  # torch's constructor gives those
            self.optimizer.add_param_group(param_group)
            self._share()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self.optimizer.step(closure)

    def state_dict(self) -> dict[str, Any]:
        own = self.own_state()
        return self.optimizer.state_dict() | ({"wrapper": own} if own else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict({name: value for name, value in state_dict.items() if name != "wrapper"})
        self._share()
        if "wrapper" in state_dict:
            self.load_own_state(state_dict["wrapper"])

    def own_state(self) -> dict[str, Any]:
        """Returns what the wrapper keeps beside the optimizer."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Does the inverse of :meth:`own_state`."""

    def with_gradient(self) -> list[torch.Tensor]:
        """Returns the parameters that have a gradient."""
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]
