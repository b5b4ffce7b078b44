"""Tells what a step's collectives are, and which of them run while the step computes something else.

A collective is asked for at one place of a step, and its result is read at another. On a GPU it goes over the links
meanwhile: products that are launched between the two hide it. One that the caller waits for at once hides nowhere. FSDP
asks on streams of its own, which wait for nothing but what they send: there it begins when the last product has run
that its input comes from, and has time until the first product that its result goes into.

::

    all_reduce(async_op=True)   asked |#### products ####| first read         hidden
    all_reduce()                asked| read                                   waited for
    FSDP's all-gather           weights updated ... |## products ##| own use  hidden, but for the first of a pass
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from suite.meters.communication import payload_bytes
from suite.record.operator_counts import COLLECTIVE, Operator, Phase

COMPUTING = frozenset({"product", "attention", "convolution"})
OWN_STREAMS = frozenset({"all_gather_copy_in", "chunk_cat", "chunk_cat_mixed_dtype"})
"""FSDP's operators that lay out what its own streams send."""
NAMES = (
    ("all-reduce", "allreduce", "all_reduce"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-gather", "allgather", "all_gather"),
    ("all-to-all", "alltoall", "all_to_all"),
    ("broadcast", "broadcast", "reduce", "gather", "scatter"),
)
"""The papers' words, and what torch's operators of each have in their names; the first that fits."""
IN_TURN = (
    "its ranks hand one another messages in turn, and how long one waits for the others is not modelled: count it "
    "without --gpu"
)


class Event(Protocol):
    """Describes a dispatched operator with the storages that it reads and writes."""

    @property
    def operator(self) -> Operator: ...
    @property
    def reads(self) -> Mapping[int, int]: ...
    @property
    def writes(self) -> Mapping[int, int]: ...


def collective(func: OpOverload, phase: Phase, args: Any, kwargs: Any, out: Any) -> Operator | None:
    """Returns a collective with the bytes of its whole tensor, as often asked for as waited for at once; None for a
    message from rank to rank."""
    own = func._overloadpacket.__name__
    name = next((word for word, *parts in NAMES if any(part in own for part in parts)), None)
    if name is None:
        return None
    ranks = dist.get_process_group_ranks(_group(args, kwargs))
    names = [argument.name for argument in func._schema.arguments]
    at_once = "async_op" in names and not dict(zip(names, args), **kwargs).get("async_op", True)
    return Operator(
        name,
        COLLECTIVE,
        phase,
        read_bytes=max(payload_bytes(part) for part in (*args, out)),
        kernels=0,
        ranks=len(ranks),
        stride=ranks[1] - ranks[0] if len(ranks) > 1 else 1,
        hidden=not at_once,
    )


def _group(args: Any, kwargs: Any) -> Any:
    leaves = [*tree_leaves(args), *tree_leaves(kwargs)]
    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return dist.ProcessGroup.unbox(leaf)
    names = [leaf for leaf in leaves if isinstance(leaf, str)]  # a functional collective's group goes by its name, last
    return dist.distributed_c10d._resolve_process_group(names[-1])  # type: ignore[arg-type]


def hidden(events: Sequence[Event]) -> set[int]:
    """Returns the places of the collectives beside which a product runs."""
    begins, ends = _begins(events), _ends(events)
    computing = [place for place, event in enumerate(events) if event.operator.kind in COMPUTING]
    return {
        place
        for place, begin in begins.items()
        if (after := bisect_right(computing, begin)) < len(computing) and computing[after] < ends[place]
    }


def _begins(events: Sequence[Event]) -> dict[int, float]:
    """Returns when each collective can begin, as a place among the events; never, where it is waited for at once."""
    last: dict[int, int] = {}  # the last product that a storage's values come from
    own_streams: set[int] = set()
    begins: dict[int, float] = {}
    for place, event in enumerate(events):
        operator = event.operator
        since = max((last.get(storage, -1) for storage in event.reads), default=-1)
        if operator.kind == COLLECTIVE:
            own = not own_streams.isdisjoint(event.reads)
            begins[place] = since if own else place if operator.hidden else inf
        if operator.name in OWN_STREAMS:
            own_streams.update(event.writes)
        for storage in event.writes:
            last[storage] = place if operator.kind in COMPUTING else since
    return begins


def _ends(events: Sequence[Event]) -> dict[int, float]:
    """Returns when each collective's result is wanted: by its first reader, of FSDP's by the first product after
    copies."""
    first: dict[int, float] = {}  # product that a storage's values go into
    read: dict[int, float] = {}
    ends: dict[int, float] = {}
    own = {storage for event in events if event.operator.name in OWN_STREAMS for storage in event.writes}
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        into = min((first.get(storage, inf) for storage in event.writes), default=inf)
        if event.operator.kind == COLLECTIVE:
            wanted = first if not own.isdisjoint(event.reads) else read
            ends[place] = min((wanted.get(storage, inf) for storage in event.writes), default=inf)
        if event.operator.kind in COMPUTING:
            into = place
        for storage in event.reads:
            first[storage] = min(first.get(storage, inf), into)
            read[storage] = place
    return ends
