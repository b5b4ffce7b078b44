"""Adds more hidden neurons to the MLPs of a model, drawn as those that are there: the inverse of
:mod:`suite.model.pruning`.

Incoming weights of new neurons have the spread of the layer's own. What the neurons give is summed, so that the
outgoing weights of all, old and new, shrink by the root of how many more there are: the sum keeps its spread.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from suite.model.anatomy import Part, innermost, is_transposed
from suite.model.pruning import Units


@torch.no_grad()
def widen(model: nn.Module, units: Units, times: int, generator: torch.Generator) -> None:
    """Makes the ``units`` of ``model`` ``times`` as many, in place; the first keep their weights, their outgoing ones
    divided by the root of ``times``. New biases repeat the old ones.

    Raises ValueError for units of several columns (heads), and where a layer has rows that are no unit's.
    """
    if units.size != 1:
        raise ValueError(f"{units.joint} joins units of {units.size} columns: only neurons, of one each, are widened")
    joint = _layer(model, units.joint)
    for path, rows in units.rows.items():
        layer = _layer(model, path)
        if rows != tuple((unit,) for unit in range(units.count)):
            raise ValueError(f"the rows of {path} are not one for each neuron, in their order: it cannot be widened")
        layer.weight = _more(layer.weight, int(is_transposed(layer)), times, generator)
        if getattr(layer, "bias", None) is not None:
            layer.bias = nn.Parameter(layer.bias.repeat(times), layer.bias.requires_grad)
        _say(layer, ("out_features", "nf"), units.count * times)
    joint.weight = _more(joint.weight, 1 - int(is_transposed(joint)), times, generator)
    joint.weight.div_(math.sqrt(times))
    _say(joint, ("in_features", "nx"), units.count * times)


def _layer(model: nn.Module, path: str) -> Any:
    return innermost(Part(path, model.get_submodule(path))).module


def _more(weight: nn.Parameter, axis: int, times: int, generator: torch.Generator) -> nn.Parameter:
    """Returns ``weight`` with ``times`` as many entries along ``axis``, the new ones normal with its own deviation."""
    shape = list(weight.shape)
    shape[axis] *= times - 1
    drawn = torch.randn(shape, generator=generator).to(weight)
    return nn.Parameter(torch.cat([weight, drawn * deviation(weight)], axis), weight.requires_grad)


def deviation(weight: Tensor) -> Tensor:
    """Returns the root mean square of the entries."""
    return weight.square().mean().sqrt()


def _say(layer: Any, names: tuple[str, ...], features: int) -> None:
    for name in names:
        if isinstance(getattr(layer, name, None), int):
            setattr(layer, name, features)
