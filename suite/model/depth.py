"""Sets another number of blocks in a stack: what states the depth follows, and so does what goes with a block's
position.

A model says its depth in its configuration, and a block its position: a layer index, a rate of stochastic depth. They
are looked up once, when the stack is first seen whole, and are pinned to its container: of a stack of one block,
nothing tells the depth from any other 1, nor which of two stacks is the larger in the end.

A copied block takes on what goes with its new position. Where blocks differ in more than that (Swin shifts the windows
of every second one, T5's first alone has a position bias), a copy cannot stand in another's place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from suite.model.anatomy import Anatomy, BlockStack

PIN = "pinned_stack"
INDEX = re.compile("layer|block|idx|index")
DEPTH = re.compile("layer|depth")

Indices = dict[str, set[str]]
"""Attributes that hold a block's position, by submodule."""


@dataclass(frozen=True)
class Pin:
    """Records what a stack was when it was first seen.

    Attributes:
        main: whether it is the model's main stack, however many blocks it has now.
        depth_names: attributes, of what is above the blocks, that state the depth.
        indices: attributes, of what is in a block, that state its position.
        stateless: by position, the modules without parameters that differ between blocks, by name (stochastic depth,
            whose rate grows with the position).
    """

    main: bool
    depth_names: frozenset[str]
    indices: Indices
    stateless: tuple[dict[str, nn.Module], ...]


def pinned(stack: BlockStack) -> Pin | None:
    """Returns the stack's pin; None before the first :func:`pin`. Copies of a model are pinned as it is."""
    return vars(stack.container).get(PIN)


def pin(parts: Anatomy) -> None:
    """Pins the stacks as they are now, each once; of all stacks the one with most parameters is the main one."""
    if all(pinned(stack) for stack in parts.stacks):
        return
    largest = max(parts.stacks, key=lambda stack: sum(p.numel() for p in stack.container.parameters()))
    for stack in parts.stacks:
        stack_pin = pinned(stack) or _seen(parts, stack)
        setattr(stack.container, PIN, replace(stack_pin, main=stack is largest))


def _seen(parts: Anatomy, stack: BlockStack) -> Pin:
    blocks = [block.module for block in stack.blocks]
    names = frozenset(
        name
        for holder in _above(parts.model, stack.path)
        for name, value in vars(holder).items()
        if DEPTH.search(name) and not name.startswith("_") and _states(value, stack.depth)
    )
    stateless = [_stateless(block) for block in blocks]
    differing = [name for name in stateless[0] if len({_settings(settings.get(name)) for settings in stateless}) > 1]
    by_position = tuple({name: settings[name] for name in differing if name in settings} for settings in stateless)
    return Pin(False, names, _index_attributes(blocks), by_position)


def set_blocks(parts: Anatomy, stack: BlockStack, blocks: list[nn.Module]) -> None:
    """Makes ``blocks`` the whole of ``stack``: see :meth:`suite.model.anatomy.Anatomy.set_blocks`."""
    if not blocks:
        raise ValueError(f"{stack.path}: give at least one block")
    seen = pinned(stack) or _seen(parts, stack)
    elsewhere = {id(holder) for o in parts.stacks if o.path != stack.path for holder in _above(parts.model, o.path)}
    changes = [
        (holder, name, value)
        for holder in _above(parts.model, stack.path)
        for name, value in _stated_depths(holder, stack, seen, len(blocks), shared=id(holder) in elsewhere)
    ]
    for holder, name, value in changes:
        setattr(holder, name, value)

    del stack.container[:]
    stack.container.extend(blocks)
    for number, block in enumerate(blocks):
        for name, module in block.named_modules():
            for attribute in seen.indices.get(name, ()):
                if hasattr(module, attribute):
                    setattr(module, attribute, number)
    for block, modules in zip(blocks, seen.stateless, strict=False):
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            setattr(block.get_submodule(parent), last, module.train(stack.container.training))


def check_alike(stack: BlockStack) -> None:
    """Raises ValueError where a copy of one block in another's place would make another model."""
    blocks = [block.module for block in stack.blocks]
    seen = pinned(stack)
    indices = seen.indices if seen else _index_attributes(blocks)
    first = _design(blocks[0], indices)
    for number, block in enumerate(blocks[1:], 1):
        design = _design(block, indices)
        differing = [name for name in (first | design) if first.get(name) != design.get(name)]
        if differing:
            raise ValueError(
                f"the blocks of {stack.path} are not all alike (0 and {number} differ in {', '.join(differing[:3])}): "
                "a copy of one in another's place would make another model; use a model whose blocks are of one design"
            )


def _design(block: nn.Module, indices: Indices) -> dict[str, Any]:
    """Returns what a block is, by name, but for the values that it learns, its position, and its modules without
    parameters."""
    stateless = _stateless(block)
    design: dict[str, Any] = {name: tuple(parameter.shape) for name, parameter in block.named_parameters()}
    for name, module in block.named_modules():
        if name in stateless:
            continue
        design[f"{name} (class)"] = type(module)
        own = {key: value for key, value in _plain(module).items() if key not in indices.get(name, ())}
        buffers = {key: None if buffer is None else tuple(buffer.shape) for key, buffer in module._buffers.items()}
        design |= {f"{name}.{key}".lstrip("."): value for key, value in (own | buffers).items()}
    return design


def _stateless(block: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules with neither parameters, buffers nor children, by name."""
    return {
        name: module
        for name, module in block.named_modules()
        if name and not (module._parameters or module._buffers or module._modules)
    }


def _settings(module: nn.Module | None) -> tuple[Any, ...]:
    return (type(module), *(sorted(_plain(module).items()) if module is not None else ()))


def _plain(module: nn.Module) -> dict[str, Any]:
    """Returns the module's attributes that are numbers, words, or tuples of these."""
    return {name: value for name, value in vars(module).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _index_attributes(blocks: Sequence[nn.Module]) -> Indices:
    """Returns the integer attributes by submodule that are named like a layer's index and equal every block's
    position."""
    agreed: Indices | None = None
    for number, block in enumerate(blocks):
        mine = {
            name: {
                attribute
                for attribute, value in vars(module).items()
                if INDEX.search(attribute) and type(value) is int and value == number
            }
            for name, module in block.named_modules()
        }
        agreed = mine if agreed is None else {name: agreed[name] & mine[name] for name in agreed.keys() & mine.keys()}
    return agreed or {}


def _above(model: nn.Module, path: str) -> list[Any]:
    """Returns the modules that contain the stack, and the configurations they keep, each once."""
    names = path.split(".")
    modules = [model.get_submodule(".".join(names[:end])) for end in range(len(names))]
    configurations = [module.config for module in modules if hasattr(vars(module).get("config"), "__dict__")]
    return list({id(holder): holder for holder in (*modules, *configurations)}.values())


def _states(value: Any, depth: int) -> bool:
    """Tells whether a value may be a stack's depth, or a list of one word for each of its layers."""
    if isinstance(value, list):
        return len(value) == depth and all(isinstance(item, str) for item in value)
    return type(value) is int and value == depth


def _stated_depths(holder: Any, stack: BlockStack, seen: Pin, depth: int, *, shared: bool) -> Iterator[tuple[str, Any]]:
    """Yields what ``holder`` should say of the stack now: integers equal to the old depth, and lists of one entry per
    layer.

    A holder that other stacks share may state their depth too: there the word "decoder" must agree with the path.
    """
    for name, value in vars(holder).items():
        if name not in seen.depth_names or not _states(value, stack.depth):
            continue
        if shared and ("decoder" in name) != ("decoder" in stack.path):
            continue
        if isinstance(value, list) and len(set(value)) > 1:
            raise ValueError(f"{stack.path} has mixed layers ({name}: {value}); its depth cannot be changed")
        yield name, depth if isinstance(value, int) else value[:1] * depth
