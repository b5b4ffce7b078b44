"""Counts peak live tensor bytes, by kind, at the moment of the peak: exact, and the same on CPU, CUDA and fake tensors.

A dispatch mode sees every storage that an operator makes and a weak reference tells when it dies; the log of these
events gives the live bytes over time. What a storage *was* is often known only later (a buffer of the backward pass
becomes ``p.grad``), so kinds are settled when the window closes, and the peak is then divided among them:

    parameters        parameters and buffers
    gradients         what became some parameter's ``.grad``
    optimizer_state   what the optimizer keeps between steps
    inputs            the batch
    activations       made by a forward pass (or a recomputation), and alive when the backward pass after it starts
    temporaries       everything else that was made in the window
    other             existed before the window and belongs to none of these: a teacher, averaged weights, masks
                      (and the optimizer's one-element step counters); whoever holds it (:mod:`suite.meters.holders`)

"Alive when the backward starts" is the memory a forward pass leaves behind, whichever way it is held: saved by
autograd, packed by a technique's own hooks, stashed on a ctx, or merely not yet dropped by the caller.

Limits. Bytes are those asked for: CUDA's allocator rounds each block up to 512, and fragments. Workspaces inside a
kernel (cuBLAS, a Triton launch's scratch) do not pass the dispatcher. Under torch.compile the dispatcher sees eager
semantics, so the numbers say nothing about compiled code. Storages swapped in without an operator are seen at their
next use.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._ops import HigherOrderOperator
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.meters.state import state_tensors
from suite.meters.storage import storages, tensors_within

KINDS = ("parameters", "gradients", "optimizer_state", "inputs", "activations", "temporaries", "other")

ALLOCATING = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "set_"}
)
METADATA = frozenset(
    {"_unsafe_view", "lift_fresh", "is_pinned", "is_same_size", "_local_scalar_dense", "record_stream"}
)


def launches(operator: Any) -> bool:
    """Tells whether an operator computes: not a view, not metadata, not a bare allocation."""
    if isinstance(operator, HigherOrderOperator):
        return True
    if operator.namespace in {"prim", "prims", "profiler"} or operator.is_view:
        return False
    name = operator._overloadpacket.__name__
    return name not in ALLOCATING and name not in METADATA and not name.startswith("sym_")


@dataclass(slots=True, eq=False)
class _Block:
    """Records one storage's life as the log knows it. ``nbytes`` is its size now, 0 once it died."""

    nbytes: int
    existed_before: bool = False
    kept_for_backward: bool = False
    kind: str | None = None


class TensorBytes(TorchDispatchMode):
    """Records the storages that live inside it.

    >>> meter = TensorBytes()
    >>> meter.seed(model, optimizer, batch)          # doctest: +SKIP
    >>> with meter:                                  # doctest: +SKIP
    ...     step()
    >>> meter.peak_bytes, meter.peak_by_kind         # doctest: +SKIP

    One meter measures one window. Results are there when the window has closed.

    Attributes:
        peak_bytes: most bytes alive at once.
        peak_by_kind: that moment's bytes by kind; all of :data:`KINDS`, summing to ``peak_bytes``.
        operators: operators that computed something (views, metadata and bare allocations excluded): a launch count. A
            ``_foreach`` or fused operator counts once. Local operators of a DTensor count, not their global fronts.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.operators = 0
        self._live: dict[int, tuple[_Block, weakref.ref[torch.UntypedStorage]]] = {}
        self._log: list[tuple[_Block, int]] = []
        self._fresh: list[_Block] = []
        self._model: nn.Module | None = None
        self._optimizer: Any = None
        self._handles: list[Any] = []
        self._in_optimizer = False
        self._depth = 0

    def seed(
        self, model: nn.Module | None = None, optimizer: Any = None, batch: Any = None, held: Iterable[Tensor] = ()
    ) -> Self:
        """Counts what exists already, and tells kinds: call it before entering. ``batch`` is any nest of tensors,
        ``held`` are those that somebody keeps, of which other kinds take theirs."""
        self._model, self._optimizer = model, optimizer
        self._label_state()
        self._label("inputs", tensors_within(batch))
        for tensor in held:
            self._track(tensor, before=True)
        return self

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._fake_mode = active_fake_mode()
            self._watch_gradients()
            self._watch_optimizers()
            self._watch_resizes()
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._depth -= 1
        if self._depth == 0:
            for handle in self._handles:
                handle.remove()
            torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
            self._label_state()
            self._settle()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Wrapper subclasses (DTensor, quantised tensors) go first: what they compute on local tensors comes back here.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        # A fake mode that was not there at entry is shape propagation, and allocates nothing.
        if active_fake_mode() is not self._fake_mode:
            return func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._track(leaf, before=True)
        if launches(func):
            self.operators += 1
            if self._fresh and self._consuming():
                self._keep_fresh()
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._track(leaf)
        return out

    @staticmethod
    def _consuming() -> bool:
        """Tells whether a backward pass runs, and no recomputation inside it, which records a graph with gradients
        on."""
        return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()

    def _keep_fresh(self) -> None:
        for block in self._fresh:
            block.kept_for_backward = block.nbytes > 0
        self._fresh.clear()

    def _track(self, tensor: Tensor, before: bool = False) -> list[_Block]:
        """Returns the blocks of ``tensor``'s storages, new ones logged. ``before``: a new one existed before this
        operator."""
        blocks = []
        for storage in storages(tensor):
            key = storage._cdata
            known = self._live.get(key)
            if known is None:
                block = _Block(nbytes=storage.nbytes(), existed_before=before or self._depth == 0)
                self._live[key] = (block, weakref.ref(storage, self._on_death(key, block)))
                self._log.append((block, block.nbytes))
                if not (block.existed_before or self._in_optimizer or self._consuming()):
                    self._fresh.append(block)
            else:
                block = known[0]
                self._resized(block, storage.nbytes())
            blocks.append(block)
        return blocks

    def _on_death(self, key: int, block: _Block) -> Callable[[Any], None]:
        live, log = self._live, self._log

        def died(_: Any) -> None:
            log.append((block, -block.nbytes))
            block.nbytes = 0
            live.pop(key, None)

        return died

    def _resized(self, block: _Block, nbytes: int) -> None:
        if nbytes != block.nbytes:
            self._log.append((block, nbytes - block.nbytes))
            block.nbytes = nbytes

    def _label(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Labels the tensors; the first label wins, so the order of labelling is the order of precedence."""
        for tensor in tensors:
            for block in self._track(tensor, before=True):
                block.kind = block.kind or kind

    def _label_state(self) -> None:
        if self._model is not None:
            parameters = list(self._model.parameters())
            self._label("parameters", [*parameters, *self._model.buffers()])
            self._label("gradients", [p.grad for p in parameters if p.grad is not None])
        if self._optimizer is not None:
            self._label("optimizer_state", state_tensors(self._optimizer))

    def _watch_gradients(self) -> None:
        """Notes gradients as they are made: they may be gone before the window closes, or even before the step."""

        def arriving(p: Tensor) -> Callable[[Tensor], None]:
            # A first gradient becomes ``p.grad`` itself. A later one is only added to it: a temporary.
            return lambda gradient: self._label("gradients", [gradient]) if p.grad is None else None

        def arrived(p: Tensor) -> None:
            if p.grad is not None:
                self._label("gradients", [p.grad])

        for p in self._model.parameters() if self._model is not None else ():
            if p.requires_grad and p.is_leaf:
                self._handles.append(p.register_hook(arriving(p)))
                self._handles.append(p.register_post_accumulate_grad_hook(arrived))

    def _watch_optimizers(self) -> None:
        def before(*_: Any) -> None:
            self._label_state()
            self._in_optimizer = True

        def after(*_: Any) -> None:
            self._label_state()
            self._in_optimizer = False

        self._handles.append(register_optimizer_step_pre_hook(before))
        self._handles.append(register_optimizer_step_post_hook(after))

    def _watch_resizes(self) -> None:
        """Watches ``UntypedStorage.resize_`` (how FSDP frees its unsharded parameters), which does not pass the
        dispatcher."""
        self._resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)
            known = self._live.get(storage._cdata)
            if known is not None:
                self._resized(known[0], storage.nbytes())

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]

    def _settle(self) -> None:
        """Finds the peak in the log, and divides it. What existed before the window counts from its beginning."""
        sizes: dict[_Block, int] = {}
        rest = []
        for block, change in self._log:
            if block.existed_before and block not in sizes:
                sizes[block] = change
            else:
                rest.append((block, change))
        now = self.peak_bytes = sum(sizes.values())
        peak_at = 0
        for position, (_, change) in enumerate(rest, start=1):
            now += change
            if now > self.peak_bytes:
                self.peak_bytes, peak_at = now, position
        for block, change in rest[:peak_at]:
            sizes[block] = sizes.get(block, 0) + change
        for block, size in sizes.items():
            self.peak_by_kind[self._kind(block)] += size
        # Drops the weak references, so that no later death writes to a closed log.
        self._live.clear()
        self._log.clear()
        self._fresh.clear()

    @staticmethod
    def _kind(block: _Block) -> str:
        if block.kind is not None:
            return block.kind
        if block.existed_before:
            return "other"
        return "activations" if block.kept_for_backward else "temporaries"
