"""What modules keep for the backward pass, in a packed form: the part that activation compression has in common.

Autograd's saved-tensor hooks see each tensor that an operator keeps, after the operator has computed with it. So the
forward pass is exact whatever a codec loses, and what it gives back enters gradients alone. In a module's forward::

    operator ── saves ──> pack(tensor, place)  ─────────>  what is kept  ─────────>  unpack()  ──> operator's backward
                          once for each distinct tensor

Packed is what carries a gradient: activations in float16, bfloat16 or float32. Parameters, their views and casts are
not, nor what has no gradient: attention's log-sum-exp, a norm's statistics, masks.
"""

from __future__ import annotations

import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from suite.contract.run import Run
from suite.contract.technique import Unavailable
from suite.model.anatomy import Anatomy, Part

PACKED_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
VIEW_OR_CAST = re.compile(
    "ToCopy|T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|Alias|Slice|Select|Split|Unbind|Squeeze|Unsqueeze"
)


class Packed(Protocol):
    """What is kept in a tensor's place; its bytes are those of the tensors in its attributes."""

    def unpack(self) -> Tensor:
        """The tensor, or what is nearest to it: its shape, dtype and device."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a tensor is saved: in the forward of the module at the path ``module``, as its ``number``-th, the same in
    every step; ``batch`` is the first size of the module's input, ``heads`` the attention heads of its stack."""

    module: str
    number: int
    batch: int
    heads: int

    @property
    def name(self) -> str:
        return f"{self.module}.{self.number}"


@dataclass(frozen=True)
class Saver:
    """A module whose saved tensors are packed, and the attention heads of its stack."""

    part: Part
    heads: int


def blocks(anatomy: Anatomy) -> list[Saver]:
    """The blocks of all stacks."""
    return [
        Saver(Part(block.path, block.module), stack.heads or 1) for stack in anatomy.stacks for block in stack.blocks
    ]


def linears(anatomy: Anatomy) -> list[Saver]:
    """The linear layers of all blocks."""
    return [
        Saver(part, stack.heads or 1) for stack in anatomy.stacks for block in stack.blocks for part in block.linears
    ]


def head_wise(shape: torch.Size, place: Place) -> tuple[int, int, int]:
    """A tensor's shape as [outer, groups, inner], a group for each head.

    [batch, heads, ...] and [batch * heads, ...] are grouped by their heads; all else, [..., channels], by equal parts
    of the channels, and as a whole where these do not divide.
    """
    count, heads = math.prod(shape), place.heads
    if len(shape) == 4 and heads % shape[1] == 0:
        groups, inner = shape[1], math.prod(shape[2:])
    elif len(shape) == 3 and heads > 1 and shape[0] == place.batch * heads:
        groups, inner = heads, math.prod(shape[1:])
    elif shape[-1] % heads == 0:
        groups, inner = heads, shape[-1] // heads
    else:
        return 1, 1, count
    return count // (groups * inner), groups, inner


Pack = Callable[[Tensor, Place], Packed]
Again = Callable[[Any, Place], None]


def ignored(packed: Any, place: Place) -> None:
    """What most codecs do where a packed tensor is saved again: nothing."""


@contextmanager
def packing(run: Run, savers: Iterable[Saver], pack: Pack, again: Again = ignored) -> Iterator[None]:
    """While active, what the modules save in their forwards is kept as ``pack`` returns it; ``again`` is called with
    what is kept already and where it is saved once more.

    Raises Unavailable for a compiled model.
    """
    if run.recipe.compile:
        raise Unavailable(
            "what single modules save is packed, and the graphs of a compiled model save what torch's partitioner "
            "chooses: take the recipe classic or modern"
        )
    saving = _Saving(pack, again)
    patched: list[tuple[Any, Any]] = []
    try:
        for saver in savers:
            module: Any = saver.part.module
            patched.append((module, vars(module).get("forward")))
            module.forward = partial(saving.run, saver, module.forward)
        yield
    finally:
        for module, own in reversed(patched):
            if own is None:
                del module.forward
            else:
                module.forward = own


class _Saving:
    """One step's hooks. ``packed``: by place in memory, the storage and its packed form, both weakly, so that codes die
    when autograd lets them go, and an address is not taken for the one that was there before."""

    def __init__(self, pack: Pack, again: Again = ignored) -> None:
        self.pack, self.again = pack, again
        self.packed: dict[tuple[Any, ...], tuple[StorageWeakRef, weakref.ref[Packed]]] = {}

    def run(self, saver: Saver, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The module's forward, in which what it saves is packed."""
        numbers = itertools.count()
        batch = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)).shape[0]

        def keep(tensor: Tensor) -> Any:
            if not _is_activation(tensor):
                # without its graph: a node that holds its own output by a hook would never die
                return tensor.detach() if tensor.grad_fn is not None else tensor
            place = Place(saver.part.path, next(numbers), batch, saver.heads)
            return _Kept(self.packed_form(tensor, place), tensor.shape)

        with saved_tensors_hooks(keep, _back):
            return forward(*args, **kwargs)

    def packed_form(self, tensor: Tensor, place: Place) -> Packed:
        key = _place_in_memory(tensor)
        _, known = self.packed.get(key, (None, None))
        packed = known() if known is not None else None
        if packed is None:
            packed = self.pack(tensor.detach(), place)
            self.packed[key] = StorageWeakRef(tensor.untyped_storage()), weakref.ref(packed)
        else:
            self.again(packed, place)
        return packed


@dataclass(frozen=True)
class _Kept:
    """A packed tensor as one operator saw it: contiguous views of one tensor share what is packed."""

    packed: Packed
    shape: torch.Size


def _back(kept: Any) -> Tensor:
    return kept.packed.unpack().view(kept.shape) if isinstance(kept, _Kept) else kept


def _place_in_memory(tensor: Tensor) -> tuple[Any, ...]:
    layout = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor._version, tensor.dtype, layout


def _is_activation(tensor: Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.dtype in PACKED_DTYPES
        and tensor.layout is torch.strided
        and tensor.ndim >= 2
        and tensor.numel() > 0
        and not _of_a_parameter(tensor)
    )


def _of_a_parameter(tensor: Tensor) -> bool:
    """Whether it is a leaf, or a view or a cast of one, as autocast makes one of each weight."""
    node: Any = tensor.grad_fn
    while node is not None and len(node.next_functions) == 1:
        if not VIEW_OR_CAST.fullmatch(node.name().removesuffix("0").removesuffix("Backward")):
            return False
        node = node.next_functions[0][0]
    return tensor.grad_fn is None or (node is not None and node.name() == "torch::autograd::AccumulateGrad")
