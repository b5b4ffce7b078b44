"""What a run holds between its steps, whoever holds it: what no operator of a counted step touches is memory all the
same (averaged weights, a teacher, a buffer of a technique's own).

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
    """What a run holds: ``tensors`` on its device, and ``host_bytes`` elsewhere."""

    tensors: tuple[Tensor, ...] = ()
    host_bytes: int = 0


class Living:
    """What lived at a moment. It keeps no tensor alive."""

    def __init__(self) -> None:
        self._data: tuple[object, ...] = ()
        self._storages = {each._cdata: weakref.ref(each) for tensor in _tensors() for each in storages(tensor)}
        self._buffers = {id(each): each for each in _buffers()}

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
        """What has come since and lives now, of a run on ``device``."""
        gc.collect()
        here: list[Tensor] = []
        elsewhere: dict[int, int] = {}
        addresses: list[int] = []
        of_data = {each._cdata for tensor in _within(self._data) for each in storages(tensor)}
        for tensor in _tensors():
            new = [each for each in storages(tensor) if each._cdata not in of_data and not self._knew(each)]
            if tensor.device.type == device.type:
                here += [tensor] if new else []
            else:
                elsewhere |= {each._cdata: each.nbytes() for each in new}
            if tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor):
                addresses += [each.data_ptr() for each in storages(tensor)]
        buffers = [each for each in _buffers() if self._buffers.get(id(each)) is not each]
        known = np.sort(np.array(addresses, dtype=np.int64))  # from now on there is a buffer of ours
        return Held(tuple(here), sum(elsewhere.values()) + sum(_bytes_of_its_own(each, known) for each in buffers))

    def _knew(self, storage: torch.UntypedStorage) -> bool:
        known = self._storages.get(storage._cdata)
        return known is not None and known() is not None


_BEFORE: ContextVar[Living | None] = ContextVar("before", default=None)


def held(device: torch.device) -> Held | None:
    """What the run on ``device`` holds now; None where nobody took stock before there was a run."""
    before = _BEFORE.get()
    return before.since(device) if before is not None else None


def _tensors() -> list[Tensor]:
    """All that the collector knows, but for those that take no memory: those of no device; those without values of a
    trace, where the run's own have some; and the values of those that have none."""
    every = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    fake = [each for each in every if isinstance(each, FakeTensor)]
    mode = active_fake_mode()
    traced = tree_leaves([list(each.meta.values()) for each in gc.get_objects() if type(each) is Node]) if mode else []
    left_out = {id(each.constant) for each in fake} | {id(each) for each in fake if each.fake_mode is not mode}
    left_out |= {id(each) for each in traced}  # what a graph says of its values
    return [each for each in every if id(each) not in left_out and each.device.type != "meta"]


def _buffers() -> list[Buffer]:
    """The memory behind arrays, mapped files and buffers that an object refers to, each once."""
    found: list[Any] = []
    objects = gc.get_objects()
    while objects:
        referred = gc.get_referents(*objects)
        kinds = {kind for kind in set(map(type, referred)) if issubclass(kind, BUFFERS)}
        found += [each for each in referred if type(each) in kinds]
        objects = [each for each in referred if type(each) in (dict, tuple) and not gc.is_tracked(each)]
    owners = (_owner(each) for each in found)
    return list({id(each): each for each in owners if isinstance(each, BUFFERS)}.values())


def _within(objects: Sequence[object]) -> list[Tensor]:
    """The tensors that the objects refer to, and what those refer to, but for modules, classes and their namespaces."""
    namespaces = {id(vars(module)) for module in list(sys.modules.values())}
    waiting, seen, tensors = list(objects), set[int](), list[Tensor]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or id(each) in namespaces or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            tensors.append(each)
        else:
            waiting += gc.get_referents(each)
    return tensors


def _owner(buffer: Any) -> Any:
    """What the memory of a view belongs to: another array, a tensor, a mapping."""
    while isinstance(buffer, np.ndarray | memoryview):
        base = buffer.base if isinstance(buffer, np.ndarray) else buffer.obj
        if base is None:
            break
        buffer = base
    return buffer


def _bytes_of_its_own(buffer: Buffer, addresses: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Its size; 0 where a tensor at one of the sorted ``addresses`` is in it, which counts as that."""
    if isinstance(buffer, mmap.mmap) and buffer.closed:
        return 0
    whole = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    start = whole.ctypes.data
    first, after = np.searchsorted(addresses, (start, start + max(1, whole.nbytes)))
    return whole.nbytes if first == after else 0
