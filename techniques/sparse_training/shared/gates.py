"""Puts coefficients on attention heads and MLP neurons, and draws the smaller network from them.

For ``earlybert`` and ``early_bird``. A coefficient multiplies what its unit gives to the layer that joins the units
(:mod:`suite.model.pruning`): of a head that is the same as multiplying its attention probabilities after their dropout,
as the head is linear in them, and needs no scores, so that fused attention stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import Anatomy, AroundLinear, Part, anatomy, innermost, weight_matrix
from suite.model.pruning import Units, attention_heads, keep, mlp_neurons


class GatedInput(AroundLinear):
    """Wraps a layer whose input's columns are multiplied by ``coefficients`` [count], each by that of its unit.

    They begin at 1, and so change nothing.
    """

    def __init__(self, linear: nn.Module, count: int) -> None:
        super().__init__(linear)
        like = next(linear.parameters())
        self.coefficients = nn.Parameter(torch.ones(count, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        by_unit = x.unflatten(-1, (len(self.coefficients), -1))
        return self.linear((by_unit * self.coefficients.to(x.dtype)[:, None]).flatten(-2))


def largest(coefficients: Tensor, share: float) -> Tensor:
    """Returns a mask, bool, that is False at ``share`` of the coefficients, rounded to whole: at the smallest by
    size."""
    mask = torch.ones_like(coefficients, dtype=torch.bool)
    mask[coefficients.abs().argsort(stable=True)[: round(share * len(coefficients))]] = False
    return mask


def largest_of_all(layers: Sequence[Tensor], share: float) -> list[Tensor]:
    """Returns masks as :func:`largest`'s over all layers together; each layer keeps its own largest coefficient, at
    least."""
    masks = list(largest(torch.cat([layer.abs() for layer in layers]), share).split([len(layer) for layer in layers]))
    for mask, coefficients in zip(masks, layers, strict=True):
        mask.index_fill_(0, coefficients.abs().argmax()[None], True)
    return masks


@dataclass(frozen=True)
class Gates:
    """Holds the gated units of a model: ``heads`` of each attention, ``neurons`` of each MLP, either possibly empty."""

    heads: tuple[Units, ...]
    neurons: tuple[Units, ...]

    @classmethod
    def on(cls, model: nn.Module, run: Run, heads: float, neurons: float) -> Gates:
        """Puts gates before the joints of what is to lose a share of its units; a share of 0 leaves it without.

        Raises ValueError for a share outside [0, 1), and for one that leaves an attention whole or without a head.
        """
        parts, forward = anatomy(model), partial(run.trial, model)
        gates = cls(
            tuple(attention_heads(parts, forward)) if heads else (),
            tuple(mlp_neurons(parts, forward)) if neurons else (),
        )
        for units in gates.heads:
            if not 0 < round(heads * units.count) < units.count:
                raise ValueError(
                    f"{heads:.3g} of the {units.count} heads of {units.owner} is {round(heads * units.count)}: give a "
                    f"share of which at least one goes and one stays, or heads=0"
                )
        if neurons and not round(neurons * sum(neuron.count for neuron in gates.neurons)):
            raise ValueError(f"{neurons:.3g} of the neurons is none: give a larger share, or neurons=0")
        for units in gates.units:
            parts.replace(units.joint, GatedInput(model.get_submodule(units.joint), units.count))
        return gates

    @property
    def units(self) -> tuple[Units, ...]:
        return self.heads + self.neurons

    def at(self, model: nn.Module) -> dict[str, GatedInput]:
        """Returns the gates by name, those of heads first."""
        gates = {}
        for units in self.units:
            path, module = units.joint, cast(Any, model.get_submodule(units.joint))
            while not isinstance(module, GatedInput):  # inside what a later technique put around it
                path, module = f"{path}.linear", module.linear
            gates[path] = module
        return gates

    def penalty(self, model: nn.Module) -> Tensor:
        """Computes the sum of all coefficients' sizes."""
        return torch.stack([gate.coefficients.abs().sum() for gate in self.at(model).values()]).sum()

    def masks(self, model: nn.Module, heads: float, neurons: float) -> list[Tensor]:
        """Tells which units of each joint stay, bool [count]: heads layer by layer, neurons over all layers."""
        values = [gate.coefficients.detach() for gate in self.at(model).values()]
        of_heads, of_neurons = values[: len(self.heads)], values[len(self.heads) :]
        masks = [largest(head, heads) for head in of_heads]
        return [*masks, *largest_of_all(of_neurons, neurons)] if of_neurons else masks

    @torch.no_grad()
    def fold(self, model: nn.Module) -> None:
        """Multiplies the coefficients into the joints' columns, and sets them to 1: the model computes as before."""
        for gate in self.at(model).values():
            columns = weight_matrix(innermost(Part("", gate)).module)
            columns.mul_(gate.coefficients.repeat_interleave(columns.shape[1] // len(gate.coefficients)))
            gate.coefficients.fill_(1.0)

    def prune(self, model: nn.Module, ticket: Sequence[Sequence[int]]) -> None:
        """Takes the gates and all units but ``ticket``'s out of the model."""
        parts: Anatomy = anatomy(model)
        for path, gate in self.at(model).items():
            parts.replace(path, gate.linear)
        for units, own in zip(self.units, ticket, strict=True):
            keep(model, units, own)
