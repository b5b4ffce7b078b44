"""Decides which rank has which heads and which hidden units of a model, by structure (:mod:`suite.model.pruning`).

Rank r of N has the r-th N-th of an attention's heads and of an MLP's hidden units::

    makes them      query, key, value (or all three fused); the MLP's first layers     the units' rows, and biases
    joins them      the attention's last layer; the MLP's last                         the units' columns, all biases

A rank leaves the other units out as pruning does, which also counts heads anew where a module says how many it has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.model.anatomy import Part, anatomy, innermost, is_transposed, out_features
from suite.model.calls import Forward
from suite.model.pruning import Units, attention_heads, keep, mlp_neurons
from suite.model.width import replace_parameters
from suite.pipeline.stages import without_values

Gather = Callable[[Tensor], Sequence[Tensor]]
"""A rank's part of a parameter -> that of every rank, in their order."""


@dataclass(frozen=True)
class Cut:
    """Says how ranks divide a parameter: along which dimension, and where in it each rank's entries are."""

    dimension: int
    places: tuple[tuple[int, ...], ...]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Joins every rank's part into the whole parameter."""
        order = torch.tensor([place for own in self.places for place in own], device=parts[0].device)
        return torch.cat(list(parts), self.dimension).index_select(self.dimension, order.argsort())


@dataclass
class Division:
    """Describes a model's division among ``ranks``. ``skeleton`` is the whole model without values, ``cuts`` are by the
    names of its parameters; what has none is replicated."""

    regions: list[Units]
    ranks: int
    cuts: dict[str, Cut]
    skeleton: nn.Module

    @classmethod
    def of(cls, model: nn.Module, forward: Forward, ranks: int) -> Division:
        """Finds the division, for which ``forward`` passes some examples through ``model``.

        Raises ValueError where heads or units cannot be told or do not divide among the ranks.
        """
        parts = anatomy(model)
        regions, joints = [], set()
        for units in (*attention_heads(parts, forward), *mlp_neurons(parts, forward)):
            if id(joint := linear(model, units.joint).module) not in joints:  # blocks may be one and the same
                joints.add(id(joint))
                regions.append(units)
        for units in regions:
            if units.count % ranks:
                raise ValueError(
                    f"{units.joint} joins {units.count} heads or units, which do not divide among {ranks} ranks: set "
                    "ranks to a divisor of it"
                )
        cuts = {name: cut for units in regions for name, cut in _cuts(model, units, ranks)}
        _check_unshared(model, cuts)
        return cls(regions, ranks, cuts, without_values(model))

    def own(self, units: Units, rank: int) -> range:
        """Returns the units of a rank."""
        return _own(units.count, self.ranks, rank)

    def take(self, model: nn.Module, rank: int) -> None:
        """Leaves ``model`` that rank's part, in place."""
        for units in self.regions:
            keep(model, units, self.own(units, rank))

    def whole(self, model: nn.Module, gather: Gather) -> nn.Module:
        """Builds a whole model of its own, of the ranks' parts; every rank calls it."""
        values = {
            name: self.cuts[name].joined(gather(parameter.detach()))
            if name in self.cuts
            else parameter.detach().clone()
            for name, parameter in model.named_parameters()
        }
        joined = copy.deepcopy(self.skeleton)
        replace_parameters(joined, values)
        for whole, own in zip(joined.buffers(), model.buffers(), strict=True):
            whole.copy_(own)
        return joined


def linear(model: nn.Module, path: str) -> Part:
    """Returns the plain linear layer at ``path``, inside of wrappers. Raises ValueError where another technique's is
    there."""
    part = innermost(Part(path, model.get_submodule(path)))
    if type(part.module) is not nn.Linear and not is_transposed(part.module):
        raise ValueError(
            f"{part.path} is a {type(part.module).__name__}, which ranks cannot divide: leave out the technique that "
            "put it in a linear layer's place"
        )
    return part


def _own(count: int, ranks: int, rank: int) -> range:
    return range(rank * count // ranks, (rank + 1) * count // ranks)


def _cuts(model: nn.Module, units: Units, ranks: int) -> Iterator[tuple[str, Cut]]:
    owned = [_own(units.count, ranks, rank) for rank in range(ranks)]
    for path, rows in units.rows.items():
        part = linear(model, path)
        if len({row for unit in rows for row in unit}) != out_features(part.module):
            raise ValueError(f"{part.path} also makes what is no head's or unit's: use a model whose layers do not")
        places = tuple(tuple(sorted(row for unit in own for row in rows[unit])) for own in owned)
        yield f"{part.path}.weight", Cut(int(is_transposed(part.module)), places)
        if part.module.bias is not None:
            yield f"{part.path}.bias", Cut(0, places)
    joint = linear(model, units.joint)
    columns = tuple(tuple(range(own.start * units.size, own.stop * units.size)) for own in owned)
    yield f"{joint.path}.weight", Cut(int(not is_transposed(joint.module)), columns)


def _check_unshared(model: nn.Module, cuts: dict[str, Cut]) -> None:
    holders = [
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    ]
    for name in cuts:
        if holders.count(id(model.get_parameter(name))) > 1:
            raise ValueError(f"{name} is shared by several layers, which ranks cannot divide: use a model without")
