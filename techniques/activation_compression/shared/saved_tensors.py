"""Packs what a forward pass saves for the backward pass: torch's saved-tensor hooks, and what may go through them.

Autograd's hooks see each tensor that an operator keeps, after the operator has computed with it. So the forward pass is
exact whatever a codec loses, and what it gives back enters gradients alone::

    operator ── saves ──> keep(tensor)  ─────────>  what is kept  ─────────>  numbers()  ──> operator's backward
                          once for all who save it

One rule for all: packed is an activation, numbers in two dimensions or more that have a gradient and are no leaf of the
graph, nor a view or a cast of one. So no parameter is, nor attention's log-sum-exp, a norm's statistics, integers.

Two scopes. :func:`packing`, for ``mesa`` and ``acgc``: what some modules save in their forwards, each tensor as it is
read. :class:`Packing`, for ``actnn`` and ``gact``: what torch's functions save in a whole step, each storage once
however it is viewed, and masks, in a bit each, without loss.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.model.anatomy import Anatomy, Part
from suite.model.forwards import standing_in
from techniques.shared.packed import from_bytes, in_bytes

PACKED_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})

VIEW_OR_CAST = re.compile(
    "(ToCopy|T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|Alias|Slice|Select|Split|Chunk|Unbind|Squeeze"
    r"|Unsqueeze|Clone)Backward\d*"
)
"""Nodes of autograd that hand on what they get."""

SENSITIVE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "log_softmax", "logsumexp"})
"""Functions of torch whose backward passes take exponentials of what they saved."""

PRODUCTS = frozenset(
    {"linear", "addmm", "matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum", "conv1d", "conv2d"}
)
"""Functions of torch whose gradients are linear in what they save, each row of it times a row of the gradient."""


# what is packed, and what comes back ----------------------------------------------------------------------------------


def is_activation(tensor: Tensor) -> bool:
    """Tells whether it has a gradient, two dimensions or more, and is no parameter."""
    return (
        tensor.layout is torch.strided
        and tensor.dtype in PACKED_DTYPES
        and tensor.ndim > 1
        and tensor.numel() > 0
        and not of_a_leaf(tensor)
    )


def of_a_leaf(tensor: Tensor) -> bool:
    """Tells whether a tensor is a leaf of the graph, as is whatever has no gradient, or a view or a cast of one, as
    autocast makes one of each weight."""
    node = tensor.grad_fn
    while node is not None and VIEW_OR_CAST.fullmatch(node.name()):
        node = node.next_functions[0][0]
    return node is None or node.name() == "torch::autograd::AccumulateGrad"


class Kept(Protocol):
    """Holds what is kept in a tensor's place: a dataclass, so that its tensors are counted."""

    def numbers(self) -> Tensor:
        """Returns the tensor's numbers [elements], or what is nearest to them, in its type and order."""
        ...


@dataclass(frozen=True)
class View:
    """Describes a tensor that is kept packed, as one operator saw it."""

    packed: Kept
    shape: torch.Size
    stride: tuple[int, ...]


def restored(saved: Any) -> Any:
    """Returns what autograd gets back."""
    return saved.packed.numbers().as_strided(saved.shape, saved.stride) if isinstance(saved, View) else saved


def without_graph(tensor: Tensor) -> Tensor:
    """Returns the tensor without its graph, for a hook to keep: a node that holds its own output never dies."""
    return tensor.detach() if tensor.grad_fn is not None else tensor


class Known(NamedTuple):
    """Holds what is kept of a storage, None where it stays whole, or is let go. Weakly, so that codes die when autograd
    lets them go; the reference to the storage sees to it that no other one gets its address."""

    storage: StorageWeakRef
    reference: weakref.ref[Kept] | None
    key: str

    @classmethod
    def of(cls, tensor: Tensor, packed: Kept | None, key: str = "") -> Known:
        return cls(StorageWeakRef(tensor.untyped_storage()), None if packed is None else weakref.ref(packed), key)

    @property
    def packed(self) -> Kept | None:
        return self.reference() if self.reference else None

    @property
    def whole(self) -> bool:
        return self.reference is None


# what modules save ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Says where a tensor is saved: in the forward of the module at the path ``module``, as its ``number``-th, the same
    in every step; ``batch`` is the first size of the module's input, ``heads`` the attention heads of its stack."""

    module: str
    number: int
    batch: int
    heads: int

    @property
    def name(self) -> str:
        return f"{self.module}.{self.number}"


@dataclass(frozen=True)
class Saver:
    """Holds a module whose saved tensors are packed, and the attention heads of its stack."""

    part: Part
    heads: int


def blocks(anatomy: Anatomy) -> list[Saver]:
    """Returns the blocks of all stacks."""
    return [
        Saver(Part(block.path, block.module), stack.heads or 1) for stack in anatomy.stacks for block in stack.blocks
    ]


def linears(anatomy: Anatomy) -> list[Saver]:
    """Returns the linear layers of all blocks."""
    return [
        Saver(part, stack.heads or 1) for stack in anatomy.stacks for block in stack.blocks for part in block.linears
    ]


def head_wise(shape: torch.Size, place: Place) -> tuple[int, int, int]:
    """Returns a tensor's shape as [outer, groups, inner], a group for each head.

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


Pack = Callable[[Tensor, Place], Kept]
Again = Callable[[Any, Place], None]


def ignored(packed: Any, place: Place) -> None:
    """Does what most codecs do where a packed tensor is saved again: nothing."""


@dataclass
class Forward:
    """Wraps a module's forward that runs, and holds what is kept of the step's tensors. A kernel that packs by itself
    takes the next ``place``, counts on, and says what it keeps (:meth:`put`)."""

    saver: Saver
    batch: int
    known: dict[Hashable, Known]
    number: int = 0

    @property
    def place(self) -> Place:
        return Place(self.saver.part.path, self.number, self.batch, self.saver.heads)

    def put(self, tensor: Tensor, packed: Kept) -> None:
        self.known[_in_memory(tensor)] = Known.of(tensor, packed)

    def kept_of(self, tensor: Tensor) -> Kept | None:
        known = self.known.get(_in_memory(tensor))
        return known.packed if known else None


Around = Callable[[Forward], AbstractContextManager[Any]]


@contextmanager
def packing(
    run: Run, savers: Iterable[Saver], pack: Pack, again: Again = ignored, around: Around = nullcontext
) -> Iterator[None]:
    """While active, what the modules save in their forwards is kept as ``pack`` returns it; ``again`` is called with
    what is kept already and where it is saved once more. ``around`` is active in each forward.

    Raises Unavailable for a compiled model.
    """
    if run.recipe.compile:
        raise Unavailable(
            "what single modules save is packed, and the graphs of a compiled model save what torch's partitioner "
            "chooses: take the recipe classic or modern"
        )
    known: dict[Hashable, Known] = {}

    def packed(saver: Saver, before: Callable[..., Any]) -> Callable[..., Any]:
        return partial(packed_forward, saver, before, known, pack, again, around)

    with ExitStack() as stack:
        for saver in savers:
            stack.enter_context(standing_in(saver.part.module, partial(packed, saver)))
        yield


def packed_forward(
    saver: Saver,
    forward: Callable[..., Any],
    known: dict[Hashable, Known],
    pack: Pack,
    again: Again,
    around: Around,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Runs a module's forward, in which what it saves is packed; ``known`` are the tensors of the step."""
    batch = next(argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)).shape[0]
    here = Forward(saver, batch, known)

    def keep(tensor: Tensor) -> Any:
        if not is_activation(tensor):
            return without_graph(tensor)
        place, packed = here.place, here.kept_of(tensor)
        here.number += 1
        if packed is None:
            packed = pack(tensor.detach(), place)
            here.put(tensor, packed)
        else:
            again(packed, place)
        return View(packed, tensor.shape, _contiguous(tensor.shape))

    with saved_tensors_hooks(keep, restored), around(here):
        return forward(*args, **kwargs)


def _in_memory(tensor: Tensor) -> tuple[Hashable, ...]:
    """Tells which numbers a tensor has, and in which order: contiguous ones are the same in every shape."""
    layout = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
    return tensor.untyped_storage()._cdata, tensor._version, tensor.dtype, tensor.storage_offset(), layout


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


# what a step saves ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """Describes a storage that is to be packed.

    ``key`` names it by what saves it first, the same in every step of a model: the function, the shape, and which of
    these in the step it is. ``numbers`` [elements] is all that it holds, in its own type. ``first`` is the length of
    the outermost dimension in memory, 1 where that is not the tensor's first. ``row`` is how many numbers meet one
    entry of a gradient: of a product those of the innermost dimension in memory, else 1. ``sensitive``: a few bits
    are too few, as a gradient is exponential in it, or all gradients pass through it.
    """

    key: str
    function: str
    numbers: Tensor
    first: int
    row: int
    sensitive: bool


Keep = Callable[[Saved], Kept | None]
"""What is kept of a storage; None where it stays whole."""


@dataclass(frozen=True)
class Mask:
    """Holds zeros and one other value, in a bit each: ``codes`` uint8 [1, bytes]; ``value`` is the other, of shape
    []."""

    codes: Tensor
    value: Tensor
    length: int

    @classmethod
    def of(cls, numbers: Tensor) -> Mask:
        """Builds the mask of ``numbers`` [elements], of any type."""
        value = numbers.amax() if numbers.is_floating_point() else numbers.new_ones(())
        return cls(in_bytes((numbers != 0).to(torch.uint8)[None], 1), value, len(numbers))

    def numbers(self) -> Tensor:
        return from_bytes(self.codes, 1, self.length)[0].to(self.value.dtype) * self.value


class Packing(TorchFunctionMode):
    """While active, it passes what autograd saves through ``keep``.

    What fused attention saves, and what the loss does, outside of the model's forward pass, is ``sensitive``. What a
    custom autograd function saves stays, since nobody knows what it does with it: so do the inputs of segments that are
    recomputed (torch.utils.checkpoint), whose insides are saved by nobody.

    ``note``, where there is one, is called in the backward pass with the key of each storage that a function saved, and
    the gradient of the function's result.
    """

    def __init__(self, model: nn.Module, keep: Keep, note: Callable[[str, Tensor], None] | None = None) -> None:
        super().__init__()
        self.model, self.keep, self.note = model, keep, note
        self.inside = 0  # the model's forward pass
        self.seen: Counter[str] = Counter()
        self.function = ""  # that runs now
        self.saving: list[str] = []  # the keys of what it saves
        self.known: dict[Hashable, Known] = {}

    def __enter__(self) -> Packing:
        self.hooks = saved_tensors_hooks(self.pack, restored)
        self.hooks.__enter__()
        self.handles = [
            self.model.register_forward_pre_hook(lambda *_: self._enters(1)),
            self.model.register_forward_hook(lambda *_: self._enters(-1), always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self.hooks.__exit__(*exc)
        for handle in self.handles:
            handle.remove()
        self.known.clear()

    def _enters(self, step: int) -> None:
        self.inside += step

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.function, self.saving = getattr(function, "__name__", ""), []
        try:
            result = function(*args, **(kwargs or {}))
        finally:
            self.function, saving = "", self.saving
        if saving and self.note and isinstance(result, Tensor) and result.requires_grad:
            for key in saving:
                result.register_hook(partial(self.note, key))
        return result

    def pack(self, tensor: Tensor) -> Any:
        """Returns what autograd keeps of a tensor."""
        whole = without_graph(tensor)
        if not self.function or not (self.is_mask(tensor) or is_activation(tensor)):
            return whole
        storage = Storage.of(whole)
        if storage is None:
            return whole
        packed, key = self.kept_of(storage, whole, tensor.requires_grad)
        if key:
            self.saving.append(key)
        return View(packed, tensor.shape, storage.stride) if packed is not None else whole

    def kept_of(self, storage: Storage, tensor: Tensor, activation: bool) -> tuple[Kept | None, str]:
        """Returns what is kept of the storage, once for all who save it, and its key; what is safe for the sensitive is
        so for all."""
        sensitive = self.function in SENSITIVE or not self.inside
        for safe in {True, sensitive}:
            known = self.known.get((storage.id, safe))
            packed = known.packed if known else None
            if known and (packed is not None or known.whole):
                return packed, known.key
        if activation:
            saved = self.described(storage, tensor, sensitive)
            packed, key = self.keep(saved), saved.key
        else:
            packed, key = Mask.of(storage.numbers(tensor)), ""
        self.known[storage.id, sensitive] = Known.of(tensor, packed, key)
        return packed, key

    def described(self, storage: Storage, tensor: Tensor, sensitive: bool) -> Saved:
        name = f"{self.function} {'x'.join(map(str, tensor.shape))}"
        self.seen[name] += 1
        first = tensor.shape[0] if tensor.stride(0) == max(tensor.stride()) else 1
        row = tensor.shape[tensor.stride().index(1)] if self.function in PRODUCTS and 1 in tensor.stride() else 1
        return Saved(f"{name} #{self.seen[name]}", self.function, storage.numbers(tensor), first, row, sensitive)

    def is_mask(self, tensor: Tensor) -> bool:
        """Tells whether it holds zeros and one other value, by what made it."""
        of_dropout = self.function == "dropout" and tensor.is_floating_point() and not tensor.requires_grad
        return tensor.numel() > 1 and (of_dropout or tensor.dtype == torch.bool)


class Storage(NamedTuple):
    """Says where a tensor's numbers are: all of its storage in the storage's order, or else a part of it, in its
    own."""

    id: tuple[Hashable, ...]
    stride: tuple[int, ...]  # of the restored tensor
    whole: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Storage | None:
        """Returns where the tensor's numbers are, or None where one number stands in several places (an expanded
        tensor)."""
        stride = tensor.stride()
        dims = sorted((step, size) for step, size in zip(stride, tensor.shape) if size > 1)
        if any(step == 0 for step, _ in dims):
            return None
        memory = _in_memory(tensor)
        expected = 1
        for step, size in dims:
            if step != expected:
                break
            expected *= size
        if expected * tensor.element_size() == tensor.untyped_storage().nbytes():
            return cls(memory[:3], stride, True)
        return cls(memory, _contiguous(tensor.shape), False)

    def numbers(self, tensor: Tensor) -> Tensor:
        return tensor.as_strided((tensor.numel(),), (1,), 0) if self.whole else tensor.reshape(-1)
