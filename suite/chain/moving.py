"""Moves values to a second tier and back, in the hooks of calls that keep their graph.

    schedule   F0 >s0.1   F1 ~s0.1   f2 >x2   |   <x2 F2 B2   <s0.1 B1   B0
    forward    a call's values go into slots as autograd saves them; behind it those that the schedule names leave
    backward   as autograd asks for the first value of call 1, what the schedule has before B1 is done

Whatever else holds a value (a side output, the model) keeps it on the device. A value that comes back stays until the
nodes that saved it are done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from suite.chain.schedule import MOVES, Op, Schedule, Value
from suite.chain.slots import Packed, Slot, key_of, unpacked
from suite.chain.tiers import Tier
from suite.meters.storage import storages


class MoveError(RuntimeError):
    """Is raised where a value that a schedule moves is not where it was seen; the message says which."""


class Moving:
    """Describes what a schedule moves, between a tier and the calls of blocks; ``moved`` hears of each value that
    leaves."""

    def __init__(self, schedule: Schedule, tier: Tier, moved: Callable[[], None] = lambda: None) -> None:
        self.schedule, self.tier, self.moved = schedule, tier, moved
        self.leaving = {op.value for op in schedule.ops if op.kind == "offload"}
        self.after: dict[int, list[Op]] = {}  # behind each call
        for op in schedule.forward:
            if op.computes:
                behind = self.after[op.block] = []
            elif op.kind in MOVES:
                behind.append(op)
        self.backward = schedule.backward
        self.back_at = {op.block: number for number, op in enumerate(self.backward) if op.kind == "back"}

    @cached_property
    def watched(self) -> frozenset[int]:
        """Returns the calls whose values go into slots: some leave, or something moves as they come back."""
        begun = -1
        due = set[int]()
        for block, number in sorted(self.back_at.items(), reverse=True):
            if any(op.kind in MOVES for op in self.backward[begun + 1 : number]):
                due.add(block)
            begun = number
        return frozenset({each.block for each in self.leaving} | {each.block - 1 for each in self.leaving} | due)


class MovingPass:
    """Holds the slots of one pass, which autograd's graph keeps alive."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.slots: dict[Value, list[weakref.ref[Slot]]] = {}
        self.handed_on: dict[tuple[int, torch.dtype], Slot] = {}  # what the last call saved of its output
        self.late: set[Value] = set()  # that were to leave before anything held them
        self.due = 0

    def kept(self, index: int, tensor: Tensor) -> Slot | None:
        """Returns the slot of the input with which a run begins; None where it stays."""
        if Value(index) not in self.moving.leaving:
            return None
        slot = self.handed_on.get(key_of(tensor)) or Slot(tensor.detach())
        self._register(Value(index), slot)
        return slot

    def ended(self, index: int, outputs: Iterable[Tensor], call: CallSlots | None) -> None:
        """Hears that a call's first time is over: what the schedule has behind it moves."""
        given = {key_of(each) for each in outputs if each.layout is torch.strided and not _wraps(each)}
        self.handed_on = {}
        if call is not None:
            self.handed_on = {key: slot for key, slot in call.slots.items() if key in given and key not in call.own}
            for key in call.own & call.slots.keys():
                self._register(Value(index), call.slots[key])
            rest = [slot for key, slot in call.slots.items() if key not in call.own and key not in given]
            for item, slot in enumerate(rest):
                self._register(Value(index, item), slot)
            call.slots.clear()  # autograd keeps the hooks
        for op in self.moving.after.get(index, ()):
            self._do(op)

    def come_back(self, index: int) -> None:
        """Hears that a call's backward pass has begun: what the schedule has before it moves."""
        stop = self.moving.back_at[index]
        while self.due < stop:
            op = self.moving.backward[self.due]
            self.due += 1
            if op.kind in MOVES:
                self._do(op)

    def _register(self, value: Value, slot: Slot) -> None:
        known = self.slots.setdefault(value, [])
        if not any(each() is slot for each in known):
            known.append(weakref.ref(slot))
        if value in self.late:
            self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        if slot.on_device:
            slot.offload(self.moving.tier)
            self.moving.moved()

    def _do(self, op: Op) -> None:
        slots = [slot for reference in self.slots.get(op.value, ()) if (slot := reference()) is not None]
        if op.kind == "offload" and op.value not in self.slots:
            if op.item is not None:
                raise MoveError(
                    f"block {op.block} saved fewer values than when it was watched, so that number {op.item} cannot "
                    "leave: what moves must be the same in every pass; take a technique that moves nothing"
                )
            self.late.add(op.value)
        for slot in slots:
            if op.kind == "offload":
                self._leave(slot)
            elif op.kind == "prefetch":
                slot.prefetch()
            else:
                slot.wait()


class CallSlots:
    """The hooks of a call: its values, each storage in a slot, in the order in which autograd saves them. Of what is
    ``given`` to it, ``own`` is the chain's; weights, buffers and what other calls read, too, stay."""

    def __init__(
        self, one: MovingPass, index: int, given: Sequence[Tensor], own: Sequence[Tensor], weights: Iterable[Tensor]
    ) -> None:
        self.one, self.index = one, index
        self.own = {key_of(each) for each in own}
        stay = [*weights, *(each for each in given if not any(each is mine for mine in own))]
        self.staying = {storage._cdata for each in stay for storage in storages(each)}
        self.slots: dict[tuple[int, torch.dtype], Slot] = {}

    def pack(self, tensor: Tensor) -> Any:
        if _wraps(tensor) or tensor.layout is not torch.strided:
            return tensor
        if any(storage._cdata in self.staying for storage in storages(tensor)):
            return tensor
        key = key_of(tensor)
        if key not in self.slots:
            self.slots[key] = self.one.handed_on.get(key) or Slot(tensor.detach(), tensor._version)
        packed = Packed(self.slots[key], tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        if key in self.own:
            value = Value(self.index)
        else:
            value = Value(self.index, [each for each in self.slots if each not in self.own].index(key))
        return packed.tensor if value in self.one.moving.leaving else packed  # a meter counts what stays

    def unpack(self, packed: Any) -> Tensor:
        self.one.come_back(self.index)
        return unpacked(packed)


def _wraps(tensor: Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)
