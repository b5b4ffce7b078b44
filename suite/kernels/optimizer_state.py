"""Keeps an optimizer's state between its steps: counters that parameters share, and checkpoints restored to the bit.

The number of steps is on the parameters' device, so that a step which the device leaves out is not counted and the host
need not wait to know. Parameters of a group that are always updated together share one counter, which makes counting
one addition; whose gradient is missing once gets a counter of its own.

torch casts a loaded state to the parameter's dtype; here it stays what was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

COUNTER = "step"
"""The state's name of the counter, as torch has it."""

Device = Callable[[Tensor, dict[str, Any]], torch.device | str]
"""Where a parameter of a group has its counter."""


def counters(
    states: Mapping[Tensor, dict[str, Any]],
    group: dict[str, Any],
    start: Callable[[Tensor, dict[str, Any]], float],
    device: Device,
) -> list[Tensor]:
    """Returns the counters of a group's parameters that have a gradient, each once, apart from those of the others.

    New ones begin with ``start``, on ``device``.
    """
    active = [parameter for parameter in group["params"] if parameter.grad is not None]
    idle = {
        id(states[parameter][COUNTER])
        for parameter in group["params"]
        if parameter.grad is None and COUNTER in states.get(parameter, ())
    }
    new: dict[Any, Tensor] = {}
    own: dict[int, Tensor] = {}
    for parameter in active:
        state = states[parameter]
        counter = state.get(COUNTER)
        if counter is None:
            key = start(parameter, group), device(parameter, group)
            if key not in new:
                new[key] = torch.tensor(key[0], dtype=torch.float32, device=key[1])
            state[COUNTER] = new[key]
        elif id(counter) in idle:
            state[COUNTER] = own.setdefault(id(counter), counter.clone())
    return list({id(states[parameter][COUNTER]): states[parameter][COUNTER] for parameter in active}.values())


def share_counters(states: Mapping[Tensor, dict[str, Any]], group: dict[str, Any], device: Device) -> None:
    """Gives a group's parameters that are at the same step one counter: after loading or copying each has its own."""
    shared: dict[Any, Tensor] = {}
    for parameter in group["params"]:
        state = states.get(parameter)
        if state and COUNTER in state:
            key = float(state[COUNTER]), device(parameter, group)
            if key not in shared:
                shared[key] = torch.tensor(key[0], dtype=torch.float32, device=key[1])
            state[COUNTER] = shared[key]


def restore_dtypes(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Puts ``saved`` values in the place of those that torch's loading cast to their parameter's dtype."""
    numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            if name != COUNTER and isinstance(value, Tensor):
                own = optimizer.state[parameter][name]
                if own.dtype != value.dtype:
                    optimizer.state[parameter][name] = value.to(own.device)


def renamed(saved: Mapping[str, Any], names: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint of torch's own optimizer as ours: ``names`` is torch's name of a state -> ours.

    What is None (torch's momentum before the first step, its choice of an implementation) is left to the default.
    Raises ValueError for AMSGrad's maximum, which no optimizer here keeps.
    """
    groups = []
    for group in saved["param_groups"]:
        if group.get("amsgrad"):
            raise ValueError("the checkpoint is AMSGrad's, which keeps a maximum that this optimizer has not")
        own = {name: value for name, value in group.items() if value is not None or defaults.get(name, 0) is None}
        if "decoupled_weight_decay" in own and "decay" in defaults:
            own["decay"] = "decoupled" if own.pop("decoupled_weight_decay") else "coupled"
        groups.append(own)
    states = {
        number: {names.get(name, name): value for name, value in state.items() if value is not None}
        if isinstance(state, dict)
        else state
        for number, state in saved["state"].items()
    }
    return {**saved, "state": states, "param_groups": groups}


def rounding_step(group: dict[str, Any]) -> Tensor:
    """Returns the number of steps that were rounded stochastically, where the group's first parameter is."""
    device = group["params"][0].device
    step: Tensor = group.get("rounding_step", torch.zeros((), dtype=torch.int64))
    group["rounding_step"] = step.to(device)
    return group["rounding_step"]


def rounding_seed(group: dict[str, Any], number: int, device: torch.device) -> Tensor:
    """Returns an int32 on ``device`` that differs by the group's seed, its step, and the list's ``number`` in it."""
    constant = (int(group.get("rounding_seed", 0)) * 0x85EBCA6B + number * 0xC2B2AE35) % 2**31
    step: Tensor = group["rounding_step"]
    return ((step * 0x9E3779B1 + constant) % 2**31).to(device, torch.int32)
