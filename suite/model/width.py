"""Gives a model another width: which dimension of which parameter counts its residual stream, its heads, its MLP's
units.

    axis        a unit is                                 written by                          read by
    residual    a number of the residual stream           embeddings, norms, branches' ends   projections, MLP, head
    heads       an attention head, ``grain`` numbers      query, key and value                the attention's last layer
    units       a hidden unit of the MLP                  the MLP's first layers              the MLP's last layer

A reader sums over the units, so that where each of n copies of a unit stands, each copy counts for 1/n
(Net2Net, Chen et al., ICLR 2016, arXiv 1511.05641, section 2.2). A table that both embeds and predicts (tied) is
written, and the norm before the head takes the reader's part. No name says all that, so a user of a layout tries it: a
model whose units are copied must compute what it did.

A narrower model keeps every n-th unit of an axis: of sines and cosines in a table of positions, some of both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from suite.model.anatomy import (
    HEADS,
    AroundLinear,
    Block,
    BlockStack,
    Part,
    anatomy,
    in_features,
    is_linear,
    is_transposed,
    out_features,
)
from suite.model.calls import Forward, undisturbed
from suite.model.projections import ROLES, Rows, projection_rows

Axis = Literal["residual", "heads", "units"]
AXES: tuple[Axis, ...] = get_args(Axis)
SHAPE_NAMES = {"out_features": 0, "in_features": 1, "embedding_dim": 1, "out_channels": 0, "nx": 0, "nf": 1}
WIDTH_NAMES = re.compile(
    r"(n_embd?|d_model|dim|width|(hidden|embed|embedding|model|all_head|split|attn|head_hidden)_?(dim|size|width)|"
    r"num_features)"
)
UNIT_NAMES = re.compile(r"n_inner|d_ff|(intermediate|ffn|inner|mlp|hidden|feed_forward)_?(dim|size)")


@dataclass(frozen=True)
class Role:
    """Says what a dimension of a parameter counts: ``lists`` times, one after the other, the ``count`` units of an
    axis, each of ``grain`` numbers; ``read`` where the units are summed over."""

    axis: Axis
    count: int
    lists: int = 1
    grain: int = 1
    read: bool = False

    def entries(self, units: Sequence[int], of: int) -> list[int]:
        """Returns where the numbers of these units are, in a dimension that has ``of`` units."""
        return [
            (start + unit) * self.grain + number
            for start in range(0, self.lists * of, of)
            for unit in units
            for number in range(self.grain)
        ]


Roles = tuple[Role | None, ...]
Layout = dict[str, Roles]
"""The roles of each parameter's dimensions, by its name; None for a dimension that no axis changes."""

Layers = dict[int, tuple[Role | None, Role | None]]
"""The roles of rows and columns of linear layers [out_features, in_features], by the layer's id."""

Sources = Mapping[Axis, Sequence[int]]
"""For each unit of a wider model the unit of the narrower one that it copies, by axis."""


# what a model is made of ----------------------------------------------------------------------------------------------


def layout(model: nn.Module, forward: Forward, axes: Collection[Axis] = AXES) -> Layout:
    """Tells what counts these axes in ``model``; ``forward`` passes some examples through it. The residual stream and
    the heads are those of a whole model, units those of the main stack.

    Raises ValueError, with the reason, where a dimension cannot be told.
    """
    parts = anatomy(model)
    stack = parts.main
    stack.check_alike()
    layers: Layers = {}
    for block in stack.blocks:
        layers |= _mlp_layers(block)
    if {"residual", "heads"} & set(axes):
        if len(parts.stacks) > 1:
            paths = " and ".join(level.path for level in parts.stacks)
            raise ValueError(f"{paths} are several stacks of blocks, whose widths hang together: use a model of one")
        for block, projections in zip(stack.blocks, projection_rows(model, stack.blocks, forward), strict=True):
            layers |= _attention_layers(block, stack, projections)
    residual = Role("residual", stack.width)
    uses: dict[int, list[Roles]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                roles = _roles(module, name, parameter, residual, layers)
                wanted = tuple(role if role and role.axis in axes else None for role in roles)
                uses.setdefault(id(parameter), []).append(wanted)
    roles_of = {name: _shared(uses[id(parameter)], name) for name, parameter in model.named_parameters()}
    if any(len(set(wanted)) > 1 for wanted in uses.values()):
        own = set(map(id, _last_norm(model, stack, forward)._parameters.values()))
        for name, parameter in model.named_parameters():
            if id(parameter) in own:
                roles_of[name] = (replace(residual, read=True),)
    return roles_of


def _attention_layers(block: Block, stack: BlockStack, projections: Mapping[Any, Rows]) -> Layers:
    residual, reads = Role("residual", block.width), Role("residual", block.width, read=True)
    if stack.heads is None:
        raise ValueError(f"{block.attention.path} does not say how many heads it has, so that none can be left out")
    if len({len(projections[role].rows) for role in ROLES}) > 1:
        raise ValueError(f"{block.attention.path} has fewer keys than queries: use a model with as many heads of each")
    layers: Layers = {}
    for part in block.attention_linears:
        if part == block.attention_output:
            size = _whole(in_features(part.module), stack.heads, part)
            layers[_bare(part.module)] = residual, Role("heads", stack.heads, grain=size, read=True)
            continue
        own = [projection.rows for projection in projections.values() if projection.layer.path == part.path]
        if not own:
            raise ValueError(f"{part.path} makes neither queries, keys nor values: nothing tells what its rows are")
        one_after_another = all(isinstance(rows, range) for rows in own)
        lists = len(own) if one_after_another else 1  # otherwise head by head, each with its query, key and value
        size = _whole(out_features(part.module), lists * stack.heads, part)
        layers[_bare(part.module)] = Role("heads", stack.heads, lists, size), reads
    return layers


def _mlp_layers(block: Block) -> Layers:
    residual, reads = Role("residual", block.width), Role("residual", block.width, read=True)
    if block.mlp_output is None:
        raise ValueError(f"the MLP of {block.path} ends in no linear layer, so that nothing tells what its units are")
    units = in_features(block.mlp_output.module)
    layers: Layers = {}
    for part in block.mlp_linears:
        if part == block.mlp_output:
            layers[_bare(part.module)] = residual, Role("units", units, read=True)
        elif in_features(part.module) == block.width:
            lists = _whole(out_features(part.module), units, part)  # a gate and what it gates may be one layer
            layers[_bare(part.module)] = Role("units", units, lists), reads
        else:
            raise ValueError(f"{part.path} reads {in_features(part.module)} numbers, which are no residual stream")
    return layers


def _whole(size: int, count: int, part: Part) -> int:
    if size % count:
        raise ValueError(f"{part.path} has {size} numbers for {count} units: nothing tells which belong to which")
    return size // count


def _bare(layer: nn.Module) -> int:
    """Returns the id of the linear layer inside of wrappers."""
    while isinstance(layer, AroundLinear):
        layer = layer.linear
    return id(layer)


def _roles(module: nn.Module, name: str, parameter: nn.Parameter, residual: Role, layers: Layers) -> Roles:
    width, nothing = residual.count, (None,) * parameter.ndim
    if is_linear(module) and name in ("weight", "bias"):
        outside = (
            residual if out_features(module) == width else None,
            replace(residual, read=True) if in_features(module) == width else None,
        )
        rows, columns = layers.get(id(module), outside)
        if name == "bias":
            return (rows,)
        return (columns, rows) if is_transposed(module) else (rows, columns)
    if getattr(module, "out_channels", None) == width:  # a convolution that embeds patches
        return (residual, *nothing[1:])
    return (*nothing[:-1], residual) if parameter.ndim and parameter.shape[-1] == width else nothing


def _shared(uses: Sequence[Roles], name: str) -> Roles:
    """Returns the roles of a parameter that several modules may hold: one that some write and others read is
    written."""
    written = {tuple(role and replace(role, read=False) for role in roles) for roles in uses}
    if len(written) > 1:
        raise ValueError(f"{name} is shared by layers that hold different things in it: use a model that shares none")
    return uses[0] if len(set(uses)) == 1 else written.pop()


def _last_norm(model: nn.Module, stack: BlockStack, forward: Forward) -> nn.Module:
    """Returns the norm of the residual stream's width that runs last, outside the blocks. Raises ValueError without
    one."""
    ran: list[nn.Module] = []

    def note(module: nn.Module, *_: Any) -> None:
        ran.append(module)

    inside = {id(member) for member in stack.container.modules()}
    norms = [
        module
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        and id(module) not in inside
        and getattr(module, "weight", None) is not None
        and module.weight.shape == (stack.width,)
    ]
    handles = [module.register_forward_hook(note) for module in norms]
    try:
        _quietly(model, forward)
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise ValueError(
            f"{type(model).__name__} predicts with its embeddings, and no norm before them can take the factor that "
            "another width needs: use a model with a head of its own"
        )
    return ran[-1]


def _quietly(model: nn.Module, forward: Forward) -> Any:
    with undisturbed(model), torch.no_grad():
        model.eval()
        return forward()


# a narrower model -----------------------------------------------------------------------------------------------------


@dataclass
class Narrowed:
    """Narrows a model to 1/n of the units of some axes (``times``: n by axis), until :meth:`widen`.

    Attributes:
        layout: of its parameters; counts are those of the whole model.
        stated: attributes that say a size, with the whole model's value: (holder, name, value).
    """

    model: nn.Module
    layout: Layout
    times: Mapping[Axis, int]
    stated: list[tuple[Any, str, Any]]

    @property
    def sources(self) -> dict[Axis, list[int]]:
        """Returns each unit as often as every other: unit j of the whole model copies unit j mod (units of this
        one)."""
        counts = {role.axis: role.count for roles in self.layout.values() for role in roles if role}
        return {axis: [unit % (counts[axis] // n) for unit in range(counts[axis])] for axis, n in self.times.items()}

    def widen(self, values: Mapping[str, Tensor]) -> None:
        """Makes the model whole again, with these values of its parameters, by name."""
        for holder, name, value in self.stated:
            setattr(holder, name, value)
        replace_parameters(self.model, values)


def narrow(model: nn.Module, layout: Layout, times: Mapping[Axis, int]) -> Narrowed:
    """Leaves every n-th unit of the axes in ``times`` in ``model``, in place.

    Matrices that read them are multiplied by sqrt(n), so that sums of fewer terms keep their variance.
    Raises ValueError where n does not divide the units.
    """
    stack = anatomy(model).main
    counts = {role.axis: role for roles in layout.values() for role in roles if role}
    for axis, n in times.items():
        count, unit = counts[axis].count, {"residual": "numbers", "heads": "heads", "units": "MLP units"}[axis]
        if count % n:
            fitting = ", ".join(str(divisor) for divisor in range(1, count + 1) if count % divisor == 0)
            raise ValueError(f"{stack.path} has {count} {unit}, which {n} does not divide: use one of {fitting}")
    values = {name: _kept(parameter.detach(), layout[name], times) for name, parameter in model.named_parameters()}
    replace_parameters(model, values)
    stated = list(_stated(model, counts, times))
    for holder, name, _, smaller in stated:
        setattr(holder, name, smaller)
    return Narrowed(model, layout, times, [(holder, name, value) for holder, name, value, _ in stated])


def _kept(values: Tensor, roles: Roles, times: Mapping[Axis, int]) -> Tensor:
    for dimension, role in enumerate(roles):
        if role is not None and (n := times.get(role.axis, 1)) > 1:
            entries = role.entries(range(0, role.count, n), role.count)
            values = values.index_select(dimension, torch.tensor(entries, device=values.device))
            if role.read and values.ndim > 1:
                values = values * math.sqrt(n)
    return values


def _stated(
    model: nn.Module, counts: Mapping[Axis, Role], times: Mapping[Axis, int]
) -> Iterator[tuple[Any, str, Any, Any]]:
    """Yields what says a size that changes: (holder, name, value, the narrower model's value)."""
    sizes: list[tuple[re.Pattern[str], int, int]] = []
    for axis, n in times.items():
        count = counts[axis].count
        sizes.append(({"residual": WIDTH_NAMES, "heads": HEADS, "units": UNIT_NAMES}[axis], count, count // n))
        if axis == "heads":
            of_all = count * counts[axis].grain
            sizes.append((WIDTH_NAMES, of_all, of_all // n))
    widths = {(whole,): (smaller,) for pattern, whole, smaller in sizes if pattern is WIDTH_NAMES}
    holders: dict[int, Any] = {}
    for module in model.modules():
        holders[id(module)] = module
        if hasattr(config := vars(module).get("config"), "__dict__"):
            holders[id(config)] = config
    for holder in holders.values():
        weight = vars(holder).get("_parameters", {}).get("weight")
        for name, value in vars(holder).items():
            smaller = value
            if name == "normalized_shape":
                smaller = widths.get(value, value)
            elif type(value) is int and name in SHAPE_NAMES and weight is not None:
                smaller = weight.shape[SHAPE_NAMES[name]]
            elif type(value) is int:
                fitting = (new for pattern, whole, new in sizes if pattern.fullmatch(name) and value == whole)
                smaller = next(fitting, value)
            if smaller != value:
                yield holder, name, value, smaller


def replace_parameters(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Gives the model new parameters with these values, by name; shared ones stay shared, frozen ones frozen."""
    new = {
        id(parameter): nn.Parameter(values[name], parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]
