"""Bytes that a forward pass saves for its backward pass, through autograd's saved-tensor hooks.

The number explains a peak, it is not one: distinct storages, model parameters and buffers left out. A technique's own
hooks (a quantiser, an offloader, torch's checkpoint) go inside these and would hide what they save, since only the
innermost hooks apply; so while the window is open every other pack hook is followed too, and what *it returns* is
counted: packed bytes for a quantiser, nothing for a checkpoint's placeholder.

Limits. Recomputed tensors (saved while a backward pass runs) do not count: a checkpointed model's saved bytes are less
than what it needs when a segment is recomputed; TensorBytes has that peak. A tensor kept on an autograd ``ctx`` as a
plain attribute passes no hook. Inside torch.func transforms, which refuse any hooks, nothing is counted.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from suite.meters.storage import storages, tensors_within


class SavedActivations:
    """Counts the bytes saved for backward by what runs inside it.

    ``model``: its parameters and buffers are not activations.

    Attributes:
        saved_bytes: bytes of the distinct storages saved so far, whether still alive or not.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        owned: Iterable[Tensor] = () if model is None else (*model.parameters(), *model.buffers())
        self._owned = {storage._cdata for tensor in owned for storage in storages(tensor)}
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._inner_hooks = 0
        self.saved_bytes = 0

    def __enter__(self) -> Self:
        self._hooks = saved_tensors_hooks(self._counting(lambda tensor: tensor), lambda tensor: tensor)
        self._hooks.__enter__()
        self._originals = (
            saved_tensors_hooks.__enter__,
            saved_tensors_hooks.__exit__,
            torch.autograd.graph.disable_saved_tensors_hooks,
        )
        enter, leave, disable = self._originals

        def enter_counted(hooks: Any) -> None:
            pack = hooks.pack_hook
            hooks.pack_hook = self._counting(pack)
            try:
                enter(hooks)
            finally:
                hooks.pack_hook = pack
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
        self._seen.clear()

    def _counting(self, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def pack_counted(tensor: Tensor) -> Any:
            packed = pack(tensor)
            if torch._C._current_graph_task_id() == -1:
                for saved in tensors_within(packed):
                    self._count(saved)
            return packed

        return pack_counted

    def _count(self, tensor: Tensor) -> None:
        for storage in storages(tensor):
            key = storage._cdata
            # An address may be used again after its storage died: only a living one is the same storage.
            seen = self._seen.get(key)
            if key not in self._owned and (seen is None or seen() is None):
                self._seen[key] = weakref.ref(storage)
                self.saved_bytes += storage.nbytes()
