"""Passes messages between the ranks of a pipeline, point to point, each by what it is and not by when it comes.

A rank says early what it will get (``expect``) and asks for it when it needs it (``take``), so that a receive is there
before its message is sent: gloo sends in one direction at a time where it is not. What is sent is kept until it has
left.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

KINDS = ("forward", "backward", "loss")
STAGES, MICROS, BOXES = 64, 1024, 4096  # that a message's number tells apart: all that are on their way at once
_boxes = count()  # ranks make theirs in the same order
_on_their_way: list[tuple[Tensor, dist.Work]] = []  # of boxes that are gone: gloo drops what nobody holds


class Letter(NamedTuple):
    """Says what a message is: of which pass, made by which stage, of which micro-batch."""

    kind: str
    stage: int
    micro: int


class Shape(NamedTuple):
    """Holds the shape of a message, and the type of its numbers."""

    size: tuple[int, ...]
    dtype: torch.dtype


class Mail:
    """Passes the messages of one run. ``sent_bytes`` counts those that this rank has sent."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.number = next(_boxes) % BOXES
        self.sent_bytes = 0
        self.expected: dict[Letter, tuple[Tensor, dist.Work | None]] = {}
        self._leaving: list[tuple[Tensor, dist.Work]] = []

    def expect(self, letter: Letter, sender: int, shape: Shape) -> None:
        """Makes room for a message, once."""
        if letter not in self.expected:
            room = torch.empty(shape.size, dtype=shape.dtype, device=self.device)
            work = dist.irecv(room, group=self.group, group_src=sender, tag=self._tag(letter))
            self.expected[letter] = room, work

    def take(self, letter: Letter) -> Tensor:
        """Returns the message, which is expected; waits for it."""
        room, work = self.expected.pop(letter)
        if work is not None:
            work.wait()
        return room

    def send(self, letter: Letter, receiver: int, message: Tensor) -> None:
        """Sends a message, which is on its way when this returns."""
        whole = message.detach().contiguous()
        work = dist.isend(whole, group=self.group, group_dst=receiver, tag=self._tag(letter))
        assert work is not None
        self.sent_bytes += whole.numel() * whole.element_size()
        self._leaving.append((whole, work))

    def flush(self) -> None:
        """Ends a step: waits until all that was sent has left. Its receivers expect it, or will without any further
        message of ours; whoever ends now takes nothing along."""
        for _, work in self._leaving:
            work.wait()
        self._leaving = []

    def __del__(self) -> None:
        coming = [(room, work) for room, work in self.expected.values() if work is not None]
        _on_their_way[:] = [(room, work) for room, work in _on_their_way if not work.is_completed()]
        _on_their_way.extend(self._leaving + coming)

    def waiting(self) -> list[dict[str, object]]:
        """Returns what has come, or is on its way, and is not taken: as :meth:`put_back` takes it."""
        for letter, (room, work) in self.expected.items():
            if work is not None:
                work.wait()
            self.expected[letter] = room, None
        return [{**letter._asdict(), "message": room} for letter, (room, _) in self.expected.items()]

    def put_back(self, waiting: list[dict[str, object]]) -> None:
        """Does the inverse of :meth:`waiting`."""
        for entry in waiting:
            letter = Letter(str(entry["kind"]), int(entry["stage"]), int(entry["micro"]))  # type: ignore[call-overload]
            self.expected[letter] = entry["message"], None  # type: ignore[assignment]

    def _tag(self, letter: Letter) -> int:
        kind = KINDS.index(letter.kind)
        return ((self.number * MICROS + letter.micro % MICROS) * STAGES + letter.stage) * len(KINDS) + kind
