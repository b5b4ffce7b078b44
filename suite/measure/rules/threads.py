"""Finds work in threads that no counter sees: counters are torch's modes, and a mode is its own thread's.

The threads of autograd's engine take the modes of whoever asked for gradients along; a thread of Python's takes none.
The profiler sees all of them. What copies, sorts or adds element by element elsewhere (a loader, an offloader) is no
work that counts FLOPs; products and what nobody knows are.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _disable_profiler,
    _enable_profiler,
    _prepare_profiler,
)
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.technique import Unavailable
from suite.measure.rules.broken import few
from suite.meters.free_operators import free

FORMULAS = torch.utils.flop_counter.flop_registry


@contextmanager
def all_threads_counted() -> Iterator[None]:
    """Raises Unavailable at the end where operators that may do matrix work ran in a thread that no mode of this one
    sees. Use around the counters."""
    config = ProfilerConfig(
        ProfilerState.KINETO, False, False, False, False, False, _ExperimentalConfig(profile_all_threads=True)
    )
    activities = {ProfilerActivity.CPU}
    _prepare_profiler(config, activities)
    _enable_profiler(config, activities)
    seen = _Threads()
    try:
        with seen:
            yield
    finally:
        events = _disable_profiler().events()
    elsewhere: defaultdict[int, set[str]] = defaultdict(set)
    for event in events:
        if event.device_resource_id() not in seen.ids and _computes(event.name()):
            elsewhere[event.device_resource_id()].add(event.name())
    if elsewhere:
        raise Unavailable(
            f"{few(set().union(*elsewhere.values()))} ran in a thread of the technique's own, which no counter sees: "
            "what its steps compute is not known; let the thread that steps compute"
        )


class _Threads(TorchDispatchMode):
    """Notes the threads whose operators modes see: this one's, and those of the engine that computes its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = {threading.get_native_id()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ids.add(threading.get_native_id())
        return func(*args, **(kwargs or {}))


def _computes(name: str) -> bool:
    """Tells whether an event is an operator that may have FLOPs, and is no name for others that stand beside it."""
    library, separator, operator = name.partition("::")
    if not separator:  # a node of autograd's, a remark
        return False
    packet = getattr(getattr(torch.ops, library), operator.partition(".")[0], None)
    if packet is None or packet in FORMULAS:
        return packet is not None
    return not (free(packet) or all(getattr(packet, each)._can_decompose() for each in packet.overloads()))
