"""Tells how a vision Transformer cuts pictures into patches and where it keeps their positions, for another grid of
patches.

Found by structure: the convolution outside the blocks whose kernel is its stride cuts side x side pixels into g x g
patches; a parameter [1, extra + g * g, width] outside the blocks, called after positions, has a row for each, behind
those of class tokens. A picture of another size or another patch has another grid, over which the table is resampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.model.anatomy import Part, anatomy
from suite.model.calls import Forward, undisturbed

POSITIONS = re.compile("pos")
MOST_EXTRA = 2  # tokens before the patches: class, distillation
TAKEN = "patch_grid_taken"  # marks a model whose grid somebody changes
STATED = {  # attributes that state the grid
    "side": ("img_size", "image_size", "input_size"),
    "patch": ("patch_size",),
    "grid": ("grid_size",),
    "count": ("num_patches",),
}


class Table(NamedTuple):
    """Describes a parameter with a row for each patch: ``name`` of the module at ``path``, behind ``extra`` other
    rows."""

    path: str
    name: str
    extra: int


@dataclass(frozen=True)
class PatchGrid:
    """Describes the grid of a model: ``cutter`` is the convolution that cuts pictures of ``side`` pixels into patches
    of ``patch``; ``holders`` are what may state it, the modules outside the blocks and their configurations."""

    cutter: Part
    side: int
    patch: int
    tables: tuple[Table, ...]
    holders: tuple[Any, ...] = field(repr=False)

    @property
    def grid(self) -> int:
        """Counts the patches along a side."""
        return self.side // self.patch

    def stated(self, side: int, patch: int) -> Iterator[tuple[Any, str, Any, Any]]:
        """Yields the holders and names of attributes that state this grid, each with its value and that of the other
        grid."""
        old = {"side": self.side, "patch": self.patch, "grid": self.grid, "count": self.grid**2}
        new = {"side": side, "patch": patch, "grid": side // patch, "count": (side // patch) ** 2}
        names = {name: what for what, several in STATED.items() for name in several}
        for holder in self.holders:
            for name, value in list(vars(holder).items()):
                what = names.get(name, "")
                if what and value == old[what]:
                    yield holder, name, value, new[what]
                elif what and isinstance(value, tuple | list) and list(value) == [old[what]] * 2:
                    yield holder, name, value, type(value)([new[what]] * 2)


def patch_grid(model: nn.Module, forward: Forward) -> PatchGrid:
    """Returns the grid of ``model``, which ``forward`` shows some pictures, for one technique of a stack to change.

    Raises ValueError with the reason where it has none of its own (overlapping patches, no positions, pictures that it
    resizes itself), and where another technique has asked for it.
    """
    if vars(model).get(TAKEN):
        raise ValueError("two techniques of the stack change the grid of patches: keep one of them")
    inside = tuple(f"{stack.path}." for stack in anatomy(model).stacks)
    cutters = [
        Part(path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and not path.startswith(inside) and module.kernel_size == module.stride
    ]
    name = type(model).__name__
    if len(cutters) != 1 or cutters[0].module.kernel_size[0] != cutters[0].module.kernel_size[1]:  # type: ignore[index]
        raise ValueError(
            f"{name} does not cut pictures into square patches, side by side: use a plain vision Transformer"
        )
    (cutter,) = cutters
    shapes: dict[str, torch.Size] = {}
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(model))
        for key, module in (("taken", model), ("cut", cutter.module)):
            hook = module.register_forward_pre_hook(
                lambda _, args, kwargs, key=key: shapes.update({key: picture_of(args, kwargs).shape}), with_kwargs=True
            )
            stack.callback(hook.remove)
        model.eval()
        forward()
    side, patch = shapes["cut"][-1], int(cutter.module.kernel_size[0])  # type: ignore[index]
    if shapes["cut"][-2:] != shapes["taken"][-2:] or side % patch or shapes["cut"][-2] != side:
        raise ValueError(f"{name} takes pictures of another size than it cuts, or of no whole number of patches")
    grid = side // patch
    tables = tuple(
        Table(path.rpartition(".")[0], path.rpartition(".")[2], parameter.shape[1] - grid**2)
        for path, parameter in model.named_parameters()
        if not path.startswith(inside)
        and POSITIONS.search(path)
        and parameter.ndim == 3
        and parameter.shape[0] == 1
        and 0 <= parameter.shape[1] - grid**2 <= MOST_EXTRA
    )
    if not tables:
        raise ValueError(f"{name} has no table of a position for each of its {grid**2} patches: use one that has")
    setattr(model, TAKEN, True)
    return PatchGrid(cutter, side, patch, tables, _outside(model))


def picture_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Returns the pictures [batch, channels, side, side] among a model's arguments."""
    return next(
        argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor) and argument.ndim == 4
    )


def _outside(model: nn.Module) -> tuple[Any, ...]:
    """Returns the modules outside the blocks and the configurations that they keep, each once."""
    inside = tuple(f"{stack.path}." for stack in anatomy(model).stacks)
    modules = [module for path, module in model.named_modules() if not path.startswith(inside)]
    configurations = [module.config for module in modules if hasattr(vars(module).get("config"), "__dict__")]
    return tuple({id(holder): holder for holder in (*modules, *configurations)}.values())
