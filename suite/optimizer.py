"""What our optimizers share: a step over lists of parameters, and the launch tables of kernels that take whole lists.

An optimizer says how a list of a group's parameters is updated, and perhaps which parameters are updated together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def launchable(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels take these tensors; torch's operators take others. Loads Triton for CUDA tensors only."""
    if not tensors or not tensors[0].is_cuda:
        return False
    from suite.kernels import optimizer_parts

    return optimizer_parts.launchable(tensors)


def contiguous(gradients: Sequence[Tensor]) -> list[Tensor]:
    """``gradients`` as kernels need them; autograd may leave them in any layout."""
    return [gradient.contiguous() for gradient in gradients]


def descend(parameter: Tensor, direction: Tensor, learning_rate: float | Tensor, weight_decay: float) -> None:
    """theta <- (1 - eta lambda) theta - eta u, in place: a step with decoupled decay. A tensor eta has shape []."""
    parameter.mul_(1 - learning_rate * weight_decay)
    if isinstance(learning_rate, Tensor):
        parameter.addcmul_(direction, learning_rate, value=-1)
    else:
        parameter.add_(direction, alpha=-learning_rate)


@cache
def compiled_over_lists(step: Callable[..., None]) -> Callable[..., None]:
    """``step``, which updates one tensor in place, over lists of tensors: one pass over memory each, in one call.

    Compiled at its first call, a fifth of a second a tensor. Numbers are compiled in: give what changes from step to
    step, such as the learning rate, as a tensor.
    """

    def steps(*lists: Sequence[Tensor], **hyper: float | Tensor) -> None:
        for tensors in zip(*lists, strict=True):
            step(*tensors, **hyper)

    return torch.compile(steps, dynamic=False)


class GroupedOptimizer(torch.optim.Optimizer):
    """Overrides :meth:`update`, and :meth:`split_by` where the parameters of a group differ in how they are updated."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._tables: dict[Tensor, Any] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by ``load_state_dict``, copies and pickles too."""
        super().__setstate__(state)
        self._tables = {}  # they hold addresses, and the tensors are new

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update_all()
        return loss

    def update_all(self) -> None:
        """Updates every parameter that has a gradient."""
        for group in self.param_groups:
            lists: dict[Hashable, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    lists.setdefault(self.split_by(parameter, group), []).append(parameter)
            for parameters in lists.values():
                self.update(group, parameters, [p.grad for p in parameters if p.grad is not None])

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> Hashable:
        """Parameters of a group are updated together if this is equal; asked once a step, before any update."""
        return None

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Updates ``parameters``, one or more of ``group``, and their state, in place; gradients stay as they are."""
        raise NotImplementedError

    def buffers(self, parameters: Sequence[Tensor], name: str) -> list[Tensor]:
        """The state ``name`` of each parameter, of its shape and dtype; zeros at first."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(parameter)
        return [state[name] for state in states]

    def tables(self, parameters: Sequence[Tensor], new: Callable[[], Any]) -> Any:
        """The kernel's launch tables for a list of parameters, by its first; ``new`` makes them."""
        if parameters[0] not in self._tables:
            self._tables[parameters[0]] = new()
        return self._tables[parameters[0]]
