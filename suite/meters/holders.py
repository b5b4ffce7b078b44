"""Finds what a run holds between its steps, whoever holds it: what no operator of a counted step touches is memory all
the same (averaged weights, a teacher, a buffer of a technique's own).

::

    before = Living()               what the process holds without the run: libraries' constants
    run = run_of(...); ...
    with before.left_out(data):     what has come since, and lives, counts: tensors of the run's device, and host bytes
        counters = run.count_step()

Python's garbage collector knows every tensor that a Python object refers to, with values or without. Arrays, mapped and
shared memory it does not list, but what refers to them it does. Buffers count once, whole, by who owns the memory; what
a tensor shares with an array is the tensor's.

Limits. What C++ alone holds (the graph behind a loss that somebody kept, a workspace) is not found; nor are arrays that
only a local variable of a running function has, and ``bytes``, in which code itself is kept.
"""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.random  # it is loaded late, and has a generator's state: no run's
import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses import FakeTensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from suite.meters.storage import storages

Buffer = np.ndarray[Any, Any] | mmap.mmap | bytearray
BUFFERS = (np.ndarray, mmap.mmap, bytearray)


@dataclass(frozen=True)
class Held:
    """Says what a run holds: ``tensors`` on its device, and ``host_bytes`` elsewhere."""

    tensors: tuple[Tensor, ...] = ()
    host_bytes: int = 0


class Living:
    """Knows what lived at a moment. It keeps no tensor alive."""

    def __init__(self) -> None:
        self._data: tuple[object, ...] = ()
        self._storages = {storage._cdata: weakref.ref(storage) for tensor in _tensors() for storage in storages(tensor)}
        self._buffers = {id(buffer): buffer for buffer in _buffers()}

    @contextmanager
    def left_out(self, *data: object) -> Iterator[None]:
        """While active, :func:`held` finds what lives and did not at that moment, but for what ``data`` refer to."""
        self._data = data
        token = _BEFORE.set(self)
        try:
            yield
        finally:
            _BEFORE.reset(token)
            self._data = ()

    def since(self, device: torch.device) -> Held:
        """Returns what has come since and lives now, of a run on ``device``."""
        gc.collect()
        here: list[Tensor] = []
        elsewhere: dict[int, int] = {}
        addresses: list[int] = []
        of_data = {storage._cdata for tensor in _within(self._data) for storage in storages(tensor)}
        for tensor in _tensors():
            new = [storage for storage in storages(tensor) if storage._cdata not in of_data and not self._knew(storage)]
            if tensor.device.type == device.type:
                here += [tensor] if new else []
            else:
                elsewhere |= {storage._cdata: storage.nbytes() for storage in new}
            if tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor):
                addresses += [storage.data_ptr() for storage in storages(tensor)]
        buffers = [buffer for buffer in _buffers() if self._buffers.get(id(buffer)) is not buffer]
        known = np.sort(np.array(addresses, dtype=np.int64))  # from now on there is a buffer of ours
        return Held(tuple(here), sum(elsewhere.values()) + sum(_bytes_of_its_own(buffer, known) for buffer in buffers))

    def _knew(self, storage: torch.UntypedStorage) -> bool:
        known = self._storages.get(storage._cdata)
        return known is not None and known() is not None


_BEFORE: ContextVar[Living | None] = ContextVar("before", default=None)


def held(device: torch.device) -> Held | None:
    """Returns what the run on ``device`` holds now; None where nobody took stock before there was a run."""
    before = _BEFORE.get()
    return before.since(device) if before is not None else None


def _tensors() -> list[Tensor]:
    """Returns all that the collector knows, but for those that take no memory: those of no device; those without values
    of a trace, where the run's own have some; and the values of those that have none."""
    every = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), Tensor)]
    fake = [tensor for tensor in every if isinstance(tensor, FakeTensor)]
    mode = active_fake_mode()
    traced = tree_leaves([list(node.meta.values()) for node in gc.get_objects() if type(node) is Node]) if mode else []
    left_out = {id(tensor.constant) for tensor in fake} | {
        id(tensor) for tensor in fake if tensor.fake_mode is not mode
    }
    left_out |= {id(tensor) for tensor in traced}  # what a graph says of its values
    return [tensor for tensor in every if id(tensor) not in left_out and tensor.device.type != "meta"]


def _buffers() -> list[Buffer]:
    """Returns the memory behind arrays, mapped files and buffers that an object refers to, each once."""
    buffers: list[Any] = []
    objects = gc.get_objects()
    while objects:
        referred = gc.get_referents(*objects)
        kinds = {kind for kind in set(map(type, referred)) if issubclass(kind, BUFFERS)}
        buffers += [referent for referent in referred if type(referent) in kinds]
        objects = [referent for referent in referred if type(referent) in (dict, tuple) and not gc.is_tracked(referent)]
    owners = (_owner(buffer) for buffer in buffers)
    return list({id(owner): owner for owner in owners if isinstance(owner, BUFFERS)}.values())


def _within(objects: Sequence[object]) -> list[Tensor]:
    """Returns the tensors that the objects refer to, and what those refer to, but for modules, classes and their
    namespaces."""
    namespaces = {id(vars(module)) for module in list(sys.modules.values())}
    waiting, seen, tensors = list(objects), set[int](), list[Tensor]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or id(thing) in namespaces or isinstance(thing, type | ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            tensors.append(thing)
        else:
            waiting += gc.get_referents(thing)
    return tensors


def _owner(buffer: Any) -> Any:
    """Returns what the memory of a view belongs to: another array, a tensor, a mapping."""
    while isinstance(buffer, np.ndarray | memoryview):
        base = buffer.base if isinstance(buffer, np.ndarray) else buffer.obj
        if base is None:
            break
        buffer = base
    return buffer


def _bytes_of_its_own(buffer: Buffer, addresses: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Returns its size; 0 where a tensor at one of the sorted ``addresses`` is in it, which counts as that."""
    if isinstance(buffer, mmap.mmap) and buffer.closed:
        return 0
    whole = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    start = whole.ctypes.data
    first, after = np.searchsorted(addresses, (start, start + max(1, whole.nbytes)))
    return whole.nbytes if first == after else 0
