"""Keeps what a model's modules have besides weights, buffers and modules: a state, a count, a term of the loss, a
list."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

INTERNAL = frozenset(vars(nn.Module()))
ROWS = ("vocab_size", "max_position_embeddings", "n_positions")
"""Names, in a model's configuration, of the rows of a table that every input looks up."""
SIZES = re.compile(
    r"(^n_(embd|inner|layer|head|ctx)|^d_(model|ff|kv)|^(num|encoder|decoder)_(.*_)?(layers|heads|channels|labels)"
    r"|(?<!chunk)(?<!window)_size|_dim|^(depth|num_classes))$"
)
"""Names, there, of what is a count or a width; a chunk's or a window's is -1 for all."""
HOOKS = frozenset(name for name in INTERNAL if "_hooks" in name and vars(nn.Module())[name] is not None)


@dataclass(frozen=True)
class Attributes:
    """Holds the attributes of a module and of those inside, and the contents of their containers, at one moment."""

    own: list[tuple[nn.Module, dict[str, Any]]]
    containers: list[tuple[Any, Any]]

    @classmethod
    def of(cls, block: nn.Module, hooks: bool = False) -> Attributes:
        """Returns a block's attributes; ``hooks`` means: with the modules' own, which a model may set at its first
        call, as it notes in an attribute."""
        own, containers = [], []
        for module in block.modules():
            now = {name: value for name, value in vars(module).items() if name not in INTERNAL}
            own.append((module, now))
            containers += [(each, each.copy()) for name, each in vars(module).items() if hooks and name in HOOKS]
            containers += [(each, each.copy()) for each in now.values() if isinstance(each, list | dict | set)]
        return cls(own, containers)

    def changed(self) -> Attributes:
        """Returns the attributes that are others now, as they were; tensors without what they came from."""
        own = []
        for module, before in self.own:
            now = vars(module)
            others = {name: _bare(value) for name, value in before.items() if now.get(name, self) is not value}
            own += [(module, others)] if others else []
        return Attributes(own, [(one, before) for one, before in self.containers if not _alike(one, before)])

    def put(self, whole: bool) -> None:
        """Has them again; ``whole``: and no others."""
        for module, before in self.own:
            now = vars(module)
            for name in [name for name in now if whole and name not in INTERNAL and name not in before]:
                del now[name]
            for name, value in before.items():
                if now.get(name, self) is not value:
                    now[name] = value
        for container, content in self.containers:
            if not _alike(container, content):
                refill(container, content)


def _bare(value: Any) -> Any:
    plain = not isinstance(value, Tensor) or value.is_leaf
    return value if plain else value.detach().requires_grad_(value.requires_grad)


def _alike(one: Any, other: Any) -> bool:
    """Tells whether two containers have the same items, in order."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(value is other[key] for key, value in one.items())
    return len(one) == len(other) and all(map(operator.is_, one, other))


def refill(container: Any, content: Any) -> None:
    """Has a list, dictionary or set hold this content."""
    container.clear()
    container.extend(content) if isinstance(container, list) else container.update(content)


def check_config(config: object) -> None:
    """Raises TypeError for a configuration whose ``dtype`` is no floating-point type, and ValueError as
    :func:`check_numbers`: its library would find that as it builds the model, or never."""
    dtype = getattr(config, "dtype", None)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype is a floating-point type, not {str(dtype)[:80]}")
    check_numbers(vars(config))


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raises ValueError where a model's settings, by name, or those of a part of it, have a table without rows, a
    negative size, or a probability of dropping something outside of [0, 1)."""
    for name, value in values.items():
        if hasattr(value, "to_dict"):  # the configuration of a part
            check_numbers(vars(value))
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if "drop" in name and not 0 <= value < 1:
            raise ValueError(f"{name} is a probability in [0, 1), not {value:g}")
        least = 1 if name in ROWS else 0
        if (name in ROWS or SIZES.search(name)) and not value >= least:
            raise ValueError(f"{name} is {least} or more, not {value:g}")
