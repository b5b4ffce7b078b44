"""Finds the heads of attentions and the neurons of MLPs: which rows and columns are theirs, and taking them out of a
model.

Both are *units*: computed side by side, and joined by one layer (an attention's output, an MLP's last), in which each
unit has columns of its own. Names cannot say which rows of which other layers make a unit: a fused weight holds
queries, keys and values one after the other, or head by head. So rows are told by what they move: one unit's columns,
and no other's, depend on them (:mod:`suite.model.replica`). Where keys serve several heads, none can go alone.

To take units out is to take their rows and columns out. What is left computes what the whole block computes with the
units at zero; that is tried on random values before anything is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.model.anatomy import (
    HEADS,
    Anatomy,
    Block,
    Part,
    check_attend,
    in_features,
    innermost,
    is_linear,
    is_transposed,
    out_features,
)
from suite.model.calls import Forward, undisturbed
from suite.model.replica import Replica, each_design

SAME = 1e-3  # of the largest output: roundings leave less


@dataclass(frozen=True)
class Units:
    """Holds the units that one layer joins.

    Attributes:
        joint: path of the layer that joins them; each unit's columns follow those of the one before.
        owner: path of the module whose attributes may count the units.
        count, size: number of units, and of columns of each.
        rows: by layer, the rows of its weight that make each unit.
    """

    joint: str
    owner: str
    count: int
    size: int
    rows: Mapping[str, tuple[tuple[int, ...], ...]]

    def inside(self, path: str) -> Units:
        """Returns these units, of a block at ``path``."""
        rows = {f"{path}.{name}": row for name, row in self.rows.items()}
        return Units(f"{path}.{self.joint}", f"{path}.{self.owner}".rstrip("."), self.count, self.size, rows)


def attention_heads(parts: Anatomy, forward: Forward) -> list[Units]:
    """Returns the heads of each block's self-attention, in the order of the blocks.

    Raises ValueError where they cannot be told or taken out one by one.
    """
    return [
        units
        for stack in parts.stacks
        for units in _each(parts, stack.blocks, forward, partial(_heads, heads=stack.heads))
    ]


def mlp_neurons(parts: Anatomy, forward: Forward) -> list[Units]:
    """Returns the hidden neurons of each block's MLP, in the order of the blocks.

    Raises ValueError where they cannot be told or taken out one by one.
    """
    return _each(parts, parts.every_block, forward, _neurons)


def keep(model: nn.Module, units: Units, remaining: Sequence[int]) -> None:
    """Takes all units but ``remaining`` (ascending) out of ``model``, in place: the layers get smaller parameters.

    Raises ValueError for an empty ``remaining``.
    """
    if not remaining:
        raise ValueError(f"{units.joint} joins {units.count} units, and at least one must stay")
    gone = set(range(units.count)).difference(remaining)
    for path, rows in units.rows.items():
        layer, taken = _layer(model, path), {row for unit in gone for row in rows[unit]}
        _keep_features(layer, [row for row in range(out_features(layer)) if row not in taken], of_input=False)
    columns = [unit * units.size + column for unit in remaining for column in range(units.size)]
    _keep_features(_layer(model, units.joint), columns, of_input=True)
    for module in model.get_submodule(units.owner).modules():
        if not is_linear(module):
            _count_anew(module, units, len(remaining))


# finding ------------------------------------------------------------------------------------------------------------


def _each(parts: Anatomy, blocks: Sequence[Block], forward: Forward, examine: Any) -> list[Units]:
    with torch.enable_grad():
        findings = each_design(parts.model, blocks, forward, examine)
    return [units.inside(block.path) for block, units in zip(blocks, findings, strict=True)]


def _heads(block: Block, replica: Replica, heads: int | None) -> Units:
    check_attend([block])
    joint = block.attention_output
    if joint is None or heads is None:
        raise ValueError(
            f"cannot tell the heads of {block.path}: it needs a layer that joins them, and a number of heads"
        )
    makers = [part for part in block.attention_linears if part != joint]
    return _units(block, replica, joint, makers, heads, _within(block, block.attention.path))


def _neurons(block: Block, replica: Replica) -> Units:
    joint = block.mlp_output
    makers = [part for part in block.mlp_linears if part != joint]
    if joint is None or not makers:
        raise ValueError(f"cannot tell the neurons of {block.path}: its MLP is not two or three linear layers")
    owner = _within(block, joint.path).rpartition(".")[0]
    return _units(block, replica, joint, makers, in_features(joint.module), owner)


def _units(block: Block, replica: Replica, joint: Part, makers: Sequence[Part], count: int, owner: str) -> Units:
    features, name = in_features(joint.module), _within(block, joint.path)
    if features % count:
        raise ValueError(f"the {features} columns of {joint.path} do not divide among {count} units")
    columns = _input_of(replica, name, joint).unflatten(-1, (count, features // count))
    rows = {}
    for part, unit_of in zip(makers, _unit_of_rows(block, replica, columns, makers), strict=True):
        if bool((unit_of >= 0).any()):
            by_unit = tuple(tuple((unit_of == unit).nonzero()[:, 0].tolist()) for unit in range(count))
            if len(set(map(len, by_unit))) > 1:
                raise ValueError(f"the units that {joint.path} joins have unequally many rows of {part.path}")
            rows[_within(block, part.path)] = by_unit
    if not rows:
        raise ValueError(f"no layer makes what {joint.path} joins")
    units = Units(name, owner, count, features // count, rows)
    _try(block, replica, units)
    return units


def _within(block: Block, path: str) -> str:
    return path[len(block.path) + 1 :]


def _input_of(replica: Replica, name: str, joint: Part) -> Tensor:
    inputs: list[Tensor] = []
    handle = replica.block.get_submodule(name).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        replica()
    finally:
        handle.remove()
    if not inputs:
        raise ValueError(f"the model reads the weight of {joint.path} and never calls it: its input cannot be told")
    return inputs[-1]


def _unit_of_rows(block: Block, replica: Replica, columns: Tensor, makers: Sequence[Part]) -> list[Tensor]:
    """Returns the unit that each row of each layer moves, int64 [rows]; -1 for a row that moves none.

    Units are numbers in binary: one gradient of those with a digit 1, and one of those with a 0, for each digit.
    """
    names = {id(parameter): name for name, parameter in block.module.named_parameters()}
    layers = [innermost(part).module for part in makers]
    if missing := [part.path for part, layer in zip(makers, layers, strict=True) if id(layer.weight) not in names]:
        raise ValueError(f"{missing[0]} has no weight of its own: prune before the technique that took it away")
    weights = [replica.values[names[id(layer.weight)]] for layer in layers]
    count = columns.shape[-2]
    owners = [torch.zeros(out_features(layer), dtype=torch.int64) for layer in layers]
    moving = [torch.zeros(len(own), dtype=torch.bool) for own in owners]
    for digit in range(max(1, (count - 1).bit_length())):
        moved: list[list[Tensor]] = []
        for value in (0, 1):
            chosen = [unit for unit in range(count) if unit >> digit & 1 == value]
            gradients = replica.gradients(columns[..., chosen, :], weights) if chosen else [None] * len(weights)
            moved.append([_moving(layer, gradient) for layer, gradient in zip(layers, gradients, strict=True)])
        for index, part in enumerate(makers):
            zero, one = (by_layer[index] for by_layer in moved)
            if bool((zero & one).any()):
                raise ValueError(
                    f"rows of {part.path} serve several of the units that {block.path} joins (grouped queries do): "
                    "none can go alone; take a model in which each has its own"
                )
            owners[index] += one.long() << digit
            moving[index] |= zero | one
    return [owner.where(moves, -1) for owner, moves in zip(owners, moving, strict=True)]


def _moving(layer: nn.Module, gradient: Tensor | None) -> Tensor:
    """Tells whether each of the layer's outputs has a gradient of its weight that is not zero, bool [out_features] on
    the CPU."""
    if gradient is None:
        return torch.zeros(out_features(layer), dtype=torch.bool)
    return gradient.ne(0).any(0 if is_transposed(layer) else 1).cpu()


def _try(block: Block, replica: Replica, units: Units) -> None:
    """Raises ValueError where the block without its first unit is not the block with that unit at zero."""
    if units.count == 1:
        return
    try:
        small = _copy(replica)
        keep(small, units, range(1, units.count))
        with ExitStack() as stack, torch.no_grad():
            stack.enter_context(undisturbed(small))
            output = small.eval()(replica.hidden, *replica.args, **replica.kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f"{block.path} does not run without one of the units that {units.joint} joins: beside the weights, its "
            "code or its buffers count them; use a model whose blocks take their number from the weights"
        ) from error
    output = output[0] if isinstance(output, tuple) else output
    joint = innermost(Part(units.joint, block.module.get_submodule(units.joint)))
    weight = replica.values[f"{joint.path}.weight"].detach().clone()
    (weight if is_transposed(joint.module) else weight.T)[: units.size] = 0
    whole = replica({f"{joint.path}.weight": weight}).detach()
    if not torch.allclose(output, whole, rtol=0.0, atol=SAME * float(whole.abs().max())):
        raise ValueError(
            f"{block.path} without one of the units that {units.joint} joins is not the same as with that unit at zero"
        )


def _copy(replica: Replica) -> nn.Module:
    """Returns the replica's block, with its values as parameters."""
    real: dict[int, Any] = {
        id(parameter): nn.Parameter(replica.values[name].detach().clone())
        for name, parameter in replica.block.named_parameters()
    }
    real |= {id(buffer): replica.buffers[name].clone() for name, buffer in replica.block.named_buffers()}
    return copy.deepcopy(replica.block, real)


# changing -----------------------------------------------------------------------------------------------------------


def _layer(model: nn.Module, path: str) -> Any:
    return innermost(Part(path, model.get_submodule(path))).module


def _keep_features(layer: Any, features: Sequence[int], *, of_input: bool) -> None:
    """Leaves a linear layer these of its inputs or outputs."""
    index = torch.tensor(features, device=layer.weight.device)
    axis = int(of_input) ^ int(is_transposed(layer))
    layer.weight = _selected(layer.weight, index, axis)
    if not of_input and getattr(layer, "bias", None) is not None:
        layer.bias = _selected(layer.bias, index, 0)
    for name in ("in_features", "nx") if of_input else ("out_features", "nf"):
        if isinstance(getattr(layer, name, None), int):
            setattr(layer, name, len(features))


def _selected(parameter: nn.Parameter, index: Tensor, axis: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach().index_select(axis, index), parameter.requires_grad)


def _count_anew(module: nn.Module, units: Units, count: int) -> None:
    """Sets the attributes that say the number of units, or of all their columns."""
    for name, value in list(vars(module).items()):
        if type(value) is not int:
            continue
        if value == units.count and units.size > 1 and HEADS.fullmatch(name):
            setattr(module, name, count)
        elif value == units.count * units.size:
            setattr(module, name, count * units.size)
