"""What a step saves for its backward pass, packed: torch's saved-tensor hooks, and what may go through them.

A model's forward pass stays as it is; only what autograd keeps of it is packed. Activations are packed (numbers that
have a gradient), and nothing else is: no parameter, nor a view or a cast of one, no statistics of norms, no logsumexp
of fused attention, no integers. Masks are packed in a bit each, without loss.

A storage that several operators save is packed once. What fused attention saves, and what the loss does, outside of
the model's forward pass, is ``sensitive``: gradients take exponentials of it, or all pass through it. What a custom
autograd function saves stays, since nobody knows what it does with it: so do the inputs of segments that are recomputed
(torch.utils.checkpoint), whose insides are saved by nobody. For ``actnn`` and ``gact``.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from techniques.shared.packed import Packed, from_bytes, in_bytes, pack, unpack

SENSITIVE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "log_softmax", "logsumexp"})
"""Functions of torch whose backward passes take exponentials of what they saved."""

PRODUCTS = frozenset(
    {"linear", "addmm", "matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum", "conv1d", "conv2d"}
)
"""Functions of torch whose gradients are linear in what they save, each row of it times a row of the gradient."""

VIEWS_AND_CASTS = (
    "ToCopy", "T", "Transpose", "View", "UnsafeView", "Permute", "Alias", "Expand", "Unsqueeze", "Squeeze", "Select",
    "Slice", "Split", "Chunk", "Unbind", "Clone", "ReshapeAlias",
)  # fmt: skip
"""Nodes of autograd that hand on what they get."""

NODE_NUMBER = re.compile(r"Backward\d*$")
PACKED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Saved:
    """A storage that is to be packed.

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


class Kept(Protocol):
    """What is kept in place of a storage: a dataclass, so that its tensors are counted."""

    def numbers(self) -> Tensor:
        """The storage's numbers [elements], in their own type."""
        ...


Keep = Callable[[Saved], Kept | None]
"""What is kept of a storage; None where it stays whole."""


@dataclass(frozen=True)
class Mask:
    """Zeros and one other value, in a bit each: ``codes`` uint8 [1, bytes]; ``value`` is the other, of shape []."""

    codes: Tensor
    value: Tensor
    length: int

    def numbers(self) -> Tensor:
        return from_bytes(self.codes, 1, self.length)[0].to(self.value.dtype) * self.value


@dataclass(frozen=True)
class Rows:
    """Rows of equal length, packed; those of the same bits together. ``places`` are the rows of each part."""

    parts: tuple[Packed, ...]
    places: tuple[list[int], ...]

    def numbers(self) -> Tensor:
        if len(self.parts) == 1:
            return unpack(self.parts[0]).flatten()
        first = self.parts[0]
        rows = torch.empty(sum(map(len, self.places)), first.length, dtype=first.dtype, device=first.codes.device)
        for part, places in zip(self.parts, self.places, strict=True):
            rows[places] = unpack(part)
        return rows.flatten()


def packed_rows(rows: Tensor, bits: Sequence[int], generator: torch.Generator) -> Rows:
    """``rows`` [rows, length], each in its own ``bits``, with the generator's noise."""
    widths = sorted(set(bits))
    if len(widths) == 1:
        return Rows((pack(rows, widths[0], generator),), (list(range(len(rows))),))
    places = tuple([row for row, each in enumerate(bits) if each == width] for width in widths)
    parts = tuple(pack(rows[same], width, generator) for same, width in zip(places, widths, strict=True))
    return Rows(parts, places)


@dataclass(frozen=True)
class View:
    """A tensor of a storage that is kept packed."""

    kept: Kept
    shape: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        return self.kept.numbers().as_strided(self.shape, self.stride)


class Packing(TorchFunctionMode):
    """While active, what autograd saves goes through ``keep``.

    ``note``, where there is one, is called in the backward pass with the key of each storage that a function saved, and
    the gradient of the function's result.
    """

    def __init__(self, model: nn.Module, keep: Keep, note: Callable[[str, Tensor], None] | None = None) -> None:
        super().__init__()
        self.model, self.keep, self.note = model, keep, note
        self.inside = 0  # the model's forward pass
        self.owned = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
        self.seen: Counter[str] = Counter()
        self.function = ""  # that runs now
        self.saving: list[str] = []  # the keys of what it saves
        self.kept: dict[tuple[Any, ...], tuple[StorageWeakRef, weakref.ref[Kept] | None, str]] = {}

    def __enter__(self) -> Packing:
        self.hooks = saved_tensors_hooks(self.pack, lambda kept: kept.tensor() if isinstance(kept, View) else kept)
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
        self.kept.clear()

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
        """What autograd keeps of a tensor."""
        whole = tensor.detach() if tensor.grad_fn is not None else tensor  # a node that holds its output never dies
        if not self.function or not (self.is_mask(tensor) or self.is_activation(tensor)):
            return whole
        place = _Place.of(whole)
        if place is None:
            return whole
        kept, key = self.kept_of(place, whole, tensor.requires_grad)
        if key:
            self.saving.append(key)
        return View(kept, tensor.shape, place.stride) if kept is not None else whole

    def kept_of(self, place: _Place, tensor: Tensor, activation: bool) -> tuple[Kept | None, str]:
        """What is kept of the storage, once for all who save it, and its key."""
        sensitive = self.function in SENSITIVE or not self.inside
        for safe in {True, sensitive}:
            storage, kept_before, key = self.kept.get((place.id, safe), (None, None, ""))
            if storage is not None and not storage.expired():
                kept = kept_before() if kept_before else None
                if kept is not None or kept_before is None:
                    return kept, key
        if activation:
            saved = self.described(place, tensor, sensitive)
            kept, key = self.keep(saved), saved.key
        else:
            kept, key = masked(place.numbers(tensor)), ""
        reference = weakref.ref(kept) if kept is not None else None
        self.kept[place.id, sensitive] = StorageWeakRef(tensor.untyped_storage()), reference, key
        return kept, key

    def described(self, place: _Place, tensor: Tensor, sensitive: bool) -> Saved:
        name = f"{self.function} {'x'.join(map(str, tensor.shape))}"
        self.seen[name] += 1
        first = tensor.shape[0] if tensor.stride(0) == max(tensor.stride()) else 1
        row = tensor.shape[tensor.stride().index(1)] if self.function in PRODUCTS and 1 in tensor.stride() else 1
        return Saved(f"{name} #{self.seen[name]}", self.function, place.numbers(tensor), first, row, sensitive)

    def is_mask(self, tensor: Tensor) -> bool:
        """Whether it holds zeros and one other value, by what made it."""
        of_dropout = self.function == "dropout" and tensor.is_floating_point() and not tensor.requires_grad
        return tensor.numel() > 1 and (of_dropout or tensor.dtype == torch.bool)

    def is_activation(self, tensor: Tensor) -> bool:
        """Whether it has a gradient, two dimensions or more, and is no parameter."""
        return (
            tensor.dtype in PACKED_DTYPES
            and tensor.ndim > 1
            and tensor.numel() > 0
            and tensor.untyped_storage()._cdata not in self.owned
            and not of_a_leaf(tensor)
        )


def of_a_leaf(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of the graph, as is whatever has no gradient, or a view or cast of one."""
    node = tensor.grad_fn
    while node is not None and NODE_NUMBER.sub("", node.name()) in VIEWS_AND_CASTS:
        node = node.next_functions[0][0]
    return node is None or node.name() == "torch::autograd::AccumulateGrad"


def masked(numbers: Tensor) -> Mask:
    """Zeros and one other value, packed. ``numbers`` [elements], of any type."""
    value = numbers.amax() if numbers.is_floating_point() else numbers.new_ones(())
    return Mask(in_bytes((numbers != 0).to(torch.uint8)[None], 1), value, len(numbers))


@dataclass(frozen=True)
class _Place:
    """Where a tensor's numbers are: all of its storage in the storage's order, or else a part of it, in its own."""

    id: tuple[Any, ...]
    stride: tuple[int, ...]  # of the restored tensor
    whole: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Place | None:
        """None where one number stands in several places (an expanded tensor)."""
        storage, stride = tensor.untyped_storage(), tensor.stride()
        dims = sorted((step, size) for step, size in zip(stride, tensor.shape) if size > 1)
        if any(step == 0 for step, _ in dims):
            return None
        id = storage._cdata, tensor._version, tensor.dtype
        expected = 1
        for step, size in dims:
            if step != expected:
                break
            expected *= size
        if expected * tensor.element_size() == storage.nbytes():
            return cls(id, stride, True)
        part = (tensor.storage_offset(), tensor.shape, stride)
        return cls(id + part, torch.empty(tensor.shape, device="meta").stride(), False)

    def numbers(self, tensor: Tensor) -> Tensor:
        return tensor.as_strided((tensor.numel(),), (1,), 0) if self.whole else tensor.reshape(-1)
