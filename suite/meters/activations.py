"""Counts the bytes that forward passes hold for their backward passes, through autograd's saved-tensor hooks.

The number explains a peak, it is not one: distinct storages, model parameters and buffers left out; the most held at
once, so that of several passes in a step (micro-batches, an ascent before the descent) the largest counts and not
their sum. A technique's own hooks (a quantiser, an offloader, torch's checkpoint) go inside these and would hide what
they save, since only the innermost hooks apply; so while the window is open every other pair of hooks is followed too,
and what *its pack returns* is counted: packed bytes for a quantiser, nothing for a checkpoint's placeholder.

Limits. Recomputed tensors (saved while a backward pass runs) do not count: a checkpointed model's saved bytes are less
than what it needs when a segment is recomputed; TensorBytes has that peak. A tensor kept on an autograd ``ctx`` as a
plain attribute passes no hook. Inside torch.func transforms, which refuse any hooks, nothing is counted.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from suite.meters.storage import storages, tensors_within


class _Saved:
    """Holds what autograd keeps in place of a saved tensor; ``release`` is called with its storages once it lets go."""

    __slots__ = ("keys", "packed", "release")

    def __init__(self, packed: Any, keys: list[int], release: Callable[[list[int]], None]) -> None:
        self.packed, self.keys, self.release = packed, keys, release

    def __del__(self) -> None:
        self.release(self.keys)


class SavedActivations:
    """Counts the bytes saved for backward by what runs inside it.

    ``model``: its parameters and buffers are not activations.

    Attributes:
        saved_bytes: most bytes of distinct storages held for backward passes at once.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = model
        self._held: dict[int, tuple[int, int]] = {}  # by storage: how often it is held, its bytes
        self._held_bytes = 0
        self._inner_hooks = 0
        self.saved_bytes = 0

    def __enter__(self) -> Self:
        self._hooks = saved_tensors_hooks(self._packing(_itself), _unpacking(lambda tensor: tensor))
        self._hooks.__enter__()
        self._originals = (
            saved_tensors_hooks.__enter__,
            saved_tensors_hooks.__exit__,
            torch.autograd.graph.disable_saved_tensors_hooks,
        )
        enter, leave, disable = self._originals

        def enter_counted(hooks: Any) -> None:
            pack, unpack = hooks.pack_hook, hooks.unpack_hook
            hooks.pack_hook, hooks.unpack_hook = self._packing(pack), _unpacking(unpack)
            try:
                enter(hooks)
            finally:
                hooks.pack_hook, hooks.unpack_hook = pack, unpack
            self._inner_hooks += 1

        def leave_counted(hooks: Any, *exc: object) -> None:
            self._inner_hooks -= 1
            leave(hooks, *exc)

        @contextlib.contextmanager
        def disable_aside(*args: Any, **kwargs: Any) -> Iterator[None]:
            # torch.func refuses to start under any hooks. Ours step aside; a technique's own are its own affair.
            if self._inner_hooks:
                with disable(*args, **kwargs):
                    yield
                return
            leave(self._hooks)
            try:
                with disable(*args, **kwargs):
                    yield
            finally:
                enter(self._hooks)

        saved_tensors_hooks.__enter__ = enter_counted  # type: ignore[method-assign]
        saved_tensors_hooks.__exit__ = leave_counted  # type: ignore[method-assign]
        torch.autograd.graph.disable_saved_tensors_hooks = disable_aside
        return self

    def __exit__(self, *exc: object) -> None:
        (
            saved_tensors_hooks.__enter__,  # type: ignore[method-assign]
            saved_tensors_hooks.__exit__,  # type: ignore[method-assign]
            torch.autograd.graph.disable_saved_tensors_hooks,
        ) = self._originals
        self._hooks.__exit__(None, None, None)

    def _packing(self, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], _Saved]:
        def pack_counted(tensor: Tensor) -> _Saved:
            packed = pack(tensor)
            recomputing = torch._C._current_graph_task_id() != -1
            keys = [] if recomputing else [key for part in tensors_within(packed) for key in self._hold(part)]
            return _Saved(packed, keys, self._release)

        return pack_counted

    def _owned(self) -> set[int]:
        """Returns the model's storages as they are now: within a step its parameters may point elsewhere."""
        owned: Iterable[Tensor] = () if self._model is None else (*self._model.parameters(), *self._model.buffers())
        return {storage._cdata for tensor in owned for storage in storages(tensor)}

    def _hold(self, tensor: Tensor) -> Iterator[int]:
        owned = self._owned()
        for storage in storages(tensor):
            key = storage._cdata  # of a living storage, as what is held keeps it alive
            if key not in owned:
                holders, nbytes = self._held.get(key, (0, storage.nbytes()))
                self._held[key] = (holders + 1, nbytes)
                self._held_bytes += 0 if holders else nbytes
                self.saved_bytes = max(self.saved_bytes, self._held_bytes)
                yield key

    def _release(self, keys: list[int]) -> None:
        for key in keys:
            holders, nbytes = self._held.pop(key)
            if holders > 1:
                self._held[key] = (holders - 1, nbytes)
            else:
                self._held_bytes -= nbytes


def _itself(tensor: Tensor) -> Tensor:
    """Returns the tensor without its graph: a node that holds its own output by a hook would never die."""
    return tensor.detach() if tensor.grad_fn is not None else tensor


def _unpacking(unpack: Callable[[Any], Tensor]) -> Callable[[_Saved], Tensor]:
    return lambda saved: unpack(saved.packed)
