"""Puts a model back as it was before a change that failed: its modules, their attributes and hooks, configurations and
values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from suite.model.attributes import refill

CONTAINERS = (dict, list, set)


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Where an error ends the block, the model is put back to the bit. Until then its values stand on the host, too."""
    modules = list(model.modules())
    attributes = [(module, type(module), dict(vars(module))) for module in modules]
    configurations = {id(each): each for module in modules for each in vars(module).values() if _configures(each)}
    states = [(each, dict(vars(each))) for each in configurations.values()]
    contents = [
        (each, each.copy()) for _, _, own in attributes for each in own.values() if isinstance(each, CONTAINERS)
    ]
    tensors = [*model.parameters(), *model.buffers()]
    values = [(each, each.requires_grad, each.grad, each.detach().to("cpu", copy=True)) for each in tensors]
    try:
        yield
    except BaseException:
        for module, kind, own in attributes:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(own)
        for holder, own in states:
            vars(holder).clear()
            vars(holder).update(own)
        for container, before in contents:
            refill(container, before)
        with torch.no_grad():
            for tensor, trained, gradient, value in values:
                tensor.requires_grad_(trained)
                tensor.grad = gradient
                if not _equal(tensor, value):
                    tensor.copy_(value)
        raise


def _equal(tensor: Tensor, value: Tensor) -> bool:
    return torch.equal(tensor.detach().cpu(), value)


def _configures(value: Any) -> bool:
    return type(value).__name__.endswith("Config") and hasattr(value, "__dict__")
