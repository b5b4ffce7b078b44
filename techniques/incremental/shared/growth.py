"""Grows models while they train: copies of units (the function-preserving initialisation of Net2Net and bert2BERT), of
blocks (stacking), and of the optimizer's state with them.

For the techniques that train a smaller model first: ``bert2bert`` and ``compound_grow``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.calls import lacks_values, undisturbed
from suite.model.width import Axis, Layout, Narrowed, Roles, Sources, layout, narrow

SAME = 0.03  # of the outputs' norm: more than bfloat16 rounds, less than a unit at a wrong place changes


def copied_units(values: Tensor, roles: Roles, sources: Sources, degree: int = 0) -> Tensor:
    """Grows one parameter and preserves the function: U[i, j] = W[g(i), g(j)] / |{k: g(k) = g(j)}|, where j is read.

    With a ``degree``, of what an optimizer keeps of the parameter, which is of that degree in its gradient: of copies
    of a unit that is written, each gets its share of the gradient, and of one that is read the whole.
    """
    for dimension, role in enumerate(roles):
        if role is None or role.axis not in sources:
            continue
        units = sources[role.axis]
        entries = torch.tensor(role.entries(units, max(units) + 1), device=values.device)
        values = values.index_select(dimension, entries)
        power = (1 if role.read else 0) if degree == 0 else (0 if role.read else degree)
        if power:
            copies = Counter(units)
            powers = [copies[unit] ** power for _ in range(role.lists) for unit in units for _ in range(role.grain)]
            shape = [-1 if other == dimension else 1 for other in range(values.ndim)]
            values = values / torch.tensor(powers, dtype=values.dtype, device=values.device).view(shape)
    return values


def with_new_units(own: Tensor, upper: Tensor, roles: Roles, sources: Sources) -> Tensor:
    """Implements advanced knowledge initialisation: the units that were there are ``own``, the new ones those of the
    same layer one block up, ``upper``; both grown by :func:`copied_units`."""
    for dimension, role in enumerate(roles):
        if role is not None and not role.read and role.axis in sources:
            units = sources[role.axis]
            there = set(role.entries(range(max(units) + 1), len(units)))
            index = torch.tensor(sorted(there), device=own.device)
            upper = upper.index_copy(dimension, index, own.index_select(dimension, index))
    return upper


def one_block_up(model: nn.Module) -> dict[str, str]:
    """Returns for each parameter of a block's linear layers the name of the same one in the next block; not of the
    last."""
    names: dict[str, str] = {}
    blocks = anatomy(model).blocks
    for block, following in pairwise(blocks):
        for part in block.linears:
            inside = part.path.removeprefix(block.path)
            for name, _ in part.module.named_parameters():
                names[f"{part.path}.{name}"] = f"{following.path}{inside}.{name}"
    return names


def grown(
    values: Mapping[str, Tensor], roles: Layout, sources: Sources, upper: Mapping[str, str], degree: int = 0
) -> dict[str, Tensor]:
    """Returns every parameter of the wider model, by name; new units from ``upper`` where it names a parameter."""
    wide = {name: copied_units(value, roles[name], sources, degree) for name, value in values.items()}
    return {
        name: with_new_units(value, wide[upper[name]], roles[name], sources) if upper.get(name) in wide else value
        for name, value in wide.items()
    }


def shallower(model: nn.Module, times: int) -> int:
    """Leaves the first 1/``times`` of the main stack's blocks in ``model``; how many there were.

    Raises ValueError where ``times`` does not divide them, or they are not copies of one design.
    """
    parts = anatomy(model)
    whole = parts.depth
    if whole % times:
        fitting = ", ".join(str(divisor) for divisor in range(1, whole + 1) if whole % divisor == 0)
        raise ValueError(
            f"{parts.main.path} has {whole} blocks, which depth={times} does not divide: use one of {fitting}"
        )
    if times > 1:
        parts.main.check_alike()
        parts.set_blocks([block.module for block in parts.blocks[: whole // times]])
    return whole


def narrowed(model: nn.Module, times: Mapping[Axis, int], forward: Callable[[nn.Module], Any]) -> Narrowed:
    """Returns ``model`` with 1/n of the units of these axes, in place; ``forward`` gives the outputs of a model.

    Raises ValueError where n does not divide the units, and where copies of units would not preserve the function: then
    nobody knows what they are.
    """
    whole = {axis: n for axis, n in times.items() if n > 1}
    small = narrow(model, layout(model, partial(forward, model), tuple(whole)), whole)
    twin = copy.deepcopy(small)
    noise = torch.Generator().manual_seed(0)
    with undisturbed(twin.model), torch.no_grad():
        twin.model.eval()
        for parameter in twin.model.parameters():  # as they start, some are zero
            drawn = torch.randn(parameter.shape, generator=noise).to(parameter.dtype) * parameter.shape[-1] ** -0.5
            parameter.copy_(drawn.to(parameter.device) if not lacks_values(parameter) else drawn)
        try:
            before = forward(twin.model).logits.float()
            values = {name: parameter.detach() for name, parameter in twin.model.named_parameters()}
            twin.widen(grown(values, twin.layout, twin.sources, {}))
            after = forward(twin.model).logits.float()
        except RuntimeError as error:
            raise ValueError(
                f"{type(model).__name__} does not run at another width ({error}): something in it that nothing names "
                "has the size of its width; use a model of plain attention and MLP blocks"
            ) from error
    if not lacks_values(before) and not (after - before).norm() <= SAME * before.norm():
        raise ValueError(
            f"{type(model).__name__} computes something else when each of its units is copied, so that it cannot grow "
            "from a narrower one; use a model of plain attention and MLP blocks"
        )
    return small


def stack_copies(run: Run, depth: int, small: Narrowed | None = None) -> dict[nn.Parameter, nn.Parameter]:
    """Stacks copies of the main stack's blocks, block i + L from block i, up to ``depth``; new parameter -> its source.

    Where the model is still ``small``, that learns of the copies. The run trains them when it adopts its model.
    """
    old = run.anatomy.blocks
    sources = [old[index % len(old)] for index in range(depth)]
    stated = small.stated if small else []
    new = [block.module for block in old]
    for source in sources[len(old) :]:
        own = _holders(source.module)
        module, said = copy.deepcopy((source.module, [part for part in stated if id(part[0]) in own]))
        new.append(module)
        stated += said
    run.anatomy.set_blocks(new)
    if small:
        for block, source in zip(run.anatomy.blocks, sources, strict=True):
            for name, _ in block.module.named_parameters():
                small.layout[f"{block.path}.{name}"] = small.layout[f"{source.path}.{name}"]
    return dict(zip(_parameters(new), _parameters([source.module for source in sources]), strict=True))


def _holders(block: nn.Module) -> set[int]:
    """Returns the ids of what a copy of the block copies: its modules and the configurations that they keep."""
    modules = list(block.modules())
    return {id(module) for module in (*modules, *(vars(module).get("config") for module in modules))}


def _parameters(blocks: list[nn.Module]) -> list[nn.Parameter]:
    return [parameter for block in blocks for parameter in block.parameters()]


def grown_state(
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    roles: Layout,
    sources: Sources,
    upper: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the optimizer's state of the wider model, by parameter: that which it would have, had it been wide.

    Moments grow as :func:`copied_units` says: first ones, and second ones, whose names torch ends in ``_sq``. What has
    not a parameter's shape is copied.
    """
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in parameters.items()}
    new: dict[str, dict[str, Any]] = {name: dict(state) for name, state in states.items()}
    for key in {key for state in states.values() for key in state}:
        moments = {
            name: state[key]
            for name, state in states.items()
            if isinstance(state.get(key), Tensor) and state[key].shape == parameters[name].shape
        }
        for name, value in grown(moments, roles, sources, upper, degree=2 if key.endswith("_sq") else 1).items():
            new[name][key] = value
    return new


def carry_state(run: Run, state_of: Callable[[nn.Parameter], Mapping[str, Any] | None]) -> None:
    """Gives the run's new optimizer copies of the state that each parameter has, where it has any."""
    for parameter in run.model.parameters():
        if state := state_of(parameter):
            run.optimizer.state[parameter] = copy.deepcopy(dict(state))


@dataclass
class LossJump:
    """Measures by how much the training loss rose at the last growth: from the step before it to the first one after
    it."""

    before: Tensor | None = None  # of the step before a growth that no step has followed yet, float64
    rise: Tensor | None = None

    def step(self, run: Run, grows: bool) -> None:
        """Notes the loss after each step; whether the model grows then."""
        if self.before is not None:
            self.rise, self.before = run.loss.double() - self.before, None
        if grows:
            self.before = run.loss.double()

    def probes(self) -> dict[str, float]:
        return {} if self.rise is None else {"loss_jump": float(self.rise)}

    def state(self) -> dict[str, Any]:
        return {"before": self.before, "rise": self.rise}


def check_single_process(run: Run, name: str) -> None:
    """Raises ValueError where several ranks train."""
    if run.mesh is not None:
        raise ValueError(f"{name} changes the model while it trains: use it in a single process")


def check_layout(run: Run, small: Narrowed, name: str) -> None:
    """Raises ValueError where a later technique has changed what is to grow."""
    if not run.trained_parameters().keys() <= small.layout.keys():
        raise ValueError(f"{name} cannot grow what a technique after it has changed: put it last in the stack")
