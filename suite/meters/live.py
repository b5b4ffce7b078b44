"""Counts live bytes as they are now, of what operators have made since the window opened: for the cost of one block.

:class:`suite.meters.tensors.TensorBytes` settles kinds and the peak of a whole step at its end; this answers at any
moment inside. Storages from before the window count nothing, nor do their deaths.
"""

from __future__ import annotations

import weakref
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.meters.storage import storages


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of distinct storages.

    Attributes:
        live_bytes: now.
        high_bytes: most since the window opened, or since :meth:`mark`.
        made: every storage that an operator has made, by its address, also of those that are gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = self.high_bytes = 0
        self.made: set[int] = set()
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._counted: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        self._resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            """Counts what FSDP2 frees of what it gathered, which does not pass the dispatcher."""
            before = storage.nbytes()
            self._know(storage, 0)
            self._resize(storage, size)
            self._count(storage._cdata, storage.nbytes() - before)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def _count(self, key: int, nbytes: int) -> None:
        self._counted[key] += nbytes
        self.live_bytes += nbytes
        self.high_bytes = max(self.high_bytes, self.live_bytes)

    def mark(self) -> int:
        """Starts a new high; returns the bytes that are alive now."""
        self.high_bytes = self.live_bytes
        return self.live_bytes

    def alive(self) -> set[int]:
        """Returns the addresses of the storages that are alive now, of those that it has met."""
        return set(self._known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._meet(leaf, 0)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._meet(leaf, None)
        return out

    def _meet(self, tensor: Tensor, counted: int | None) -> None:
        """Counts the storages that are new: as ``counted`` bytes each, or as what they hold."""
        for storage in storages(tensor):
            self._know(storage, counted)

    def _know(self, storage: torch.UntypedStorage, counted: int | None) -> None:
        if (key := storage._cdata) not in self._known:
            self._known[key] = weakref.ref(storage, self._died(key))
            if counted is None:
                self.made.add(key)
            self._counted[key] = 0
            self._count(key, storage.nbytes() if counted is None else counted)

    def _died(self, key: int) -> Any:
        def died(_: Any) -> None:
            self._known.pop(key, None)
            self.live_bytes -= self._counted.pop(key, 0)

        return died


class NamedHigh(LiveBytes):
    """Counts live bytes, and notes what made the highest of them: an operator, and the shape of its largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.maker: tuple[Any, list[int]] | None = None

    def mark(self) -> int:
        self.maker = None
        return super().mark()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        high_bytes = self.high_bytes
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.high_bytes > high_bytes:
            results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.maker = func, list(max(results, key=Tensor.numel).shape)
        return out

    def where(self) -> str:
        """Tells what made the highest, in words."""
        if self.maker is None:
            return ""
        operator, shape = self.maker
        return f", where {str(operator.overloadpacket).removeprefix('aten.')} makes {shape}"
