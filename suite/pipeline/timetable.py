"""Builds a pipeline's schedule: for each rank the ordered list of what it does in a training step.

A model is cut into stages, a batch into micro-batches. Three things are done::

    forward  F   a micro-batch through a stage      at a version of the stage's weights
    backward B   its gradient back through it       at a version, which need not be the forward's
    update   U   of the stage's weights             makes the next version

What a method is, is in these lists alone: the simulator times them, the executor carries them out between processes,
and the drawings draw them. Micro-batches are counted over the whole run, and so are versions, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "update"]


class PipelineOp(NamedTuple):
    """Describes one operation on a stage. ``version``: of the weights that it uses; of an update, the one that it
    makes."""

    kind: Kind
    stage: int
    micro: int
    version: int


Program = list[list[PipelineOp]]
"""The operations of each rank, in its order."""


@dataclass(frozen=True)
class PipelineSchedule:
    """Holds ``step(n)``, the program of the n-th training step, whose batch has ``micro_batches``; a rank may begin in
    it with the micro-batches of later ones. ``place(stage, micro)`` is the rank that has the stage for that
    micro-batch.
    """

    stages: int
    micro_batches: int
    step: Callable[[int], Program]
    place: Callable[[int, int], int] = lambda stage, micro: stage

    @property
    def ranks(self) -> int:
        return len(self.step(0))

    def program(self, steps: int) -> Program:
        """Returns the program of the first ``steps`` training steps."""
        by_step = [self.step(number) for number in range(steps)]
        return [[op for step in by_step for op in step[rank]] for rank in range(self.ranks)]

    def stages_of(self, rank: int) -> list[int]:
        """Returns the stages whose weights a rank holds."""
        return sorted({op.stage for op in self.step(0)[rank]})


Versions = Callable[[Kind, int, int, int], int]
"""``versions(kind, stage, micro, step)``: the version that a pass uses which is made in a training step."""


def steady(stages: int, micro_batches: int, ahead: Callable[[int], int], versions: Versions) -> PipelineSchedule:
    """Does one forward, one backward, and never a flush: a stage is ``ahead(stage)`` forwards ahead of its backward
    passes. Each training step ends in an update."""

    def step(number: int) -> Program:
        first = number * micro_batches
        program: Program = []
        for stage in range(stages):
            lead = ahead(stage)
            passes: list[tuple[Kind, int]] = [("forward", micro) for micro in range(lead)] if number == 0 else []
            for micro in range(first, first + micro_batches):
                passes += [("forward", micro + lead), ("backward", micro)]
            ops = [PipelineOp(kind, stage, micro, versions(kind, stage, micro, number)) for kind, micro in passes]
            program.append([*ops, PipelineOp("update", stage, -1, number + 1)])
        return program

    return PipelineSchedule(stages, micro_batches, step)


def flushed(stages: int, micro_batches: int, order: Callable[[int], Sequence[tuple[Kind, int]]]) -> PipelineSchedule:
    """Runs all micro-batches of a batch at one version, then one update: ``order(stage)`` says in which order a stage's
    passes come, by their kind and their place in the batch."""

    def step(number: int) -> Program:
        return [
            [
                *(PipelineOp(kind, stage, number * micro_batches + place, number) for kind, place in order(stage)),
                PipelineOp("update", stage, -1, number + 1),
            ]
            for stage in range(stages)
        ]

    return PipelineSchedule(stages, micro_batches, step)


class Broken(ValueError):
    """Is raised for a program that no pipeline can carry out; the message names the operation."""


def check(program: Program, stages: int) -> None:
    """Raises Broken where a pass is made twice, a backward pass comes before its forward or has none, or an update
    makes another version than the next."""
    done: set[tuple[str, int, int]] = set()
    for rank, ops in enumerate(program):
        seen: set[tuple[str, int, int]] = set()
        newest = dict.fromkeys(range(stages), 0)
        for op in ops:
            if op.kind == "update":
                if op.version != newest[op.stage] + 1:
                    raise Broken(f"rank {rank}: {op} follows version {newest[op.stage]}")
                newest[op.stage] = op.version
                continue
            if op.version > newest[op.stage] or op.version < 0:
                raise Broken(f"rank {rank}: {op} uses a version that is not made yet: {newest[op.stage]} is the newest")
            key = (op.kind, op.stage, op.micro)
            if key in seen or key in done:
                raise Broken(f"rank {rank}: {op} is made twice")
            if op.kind == "backward" and ("forward", op.stage, op.micro) not in seen:
                raise Broken(f"rank {rank}: {op} comes before its forward pass")
            seen.add(key)
        done |= seen


class Delay(NamedTuple):
    """Says how many updates lie between the weights of a micro-batch's passes and those that its gradient changes."""

    forward: int
    backward: int


def delays(ops: Sequence[PipelineOp], stage: int) -> dict[int, Delay]:
    """Returns the delay of each micro-batch whose gradient a rank's ``ops`` apply on a stage."""
    forward: dict[int, int] = {}
    waiting: dict[int, int] = {}
    by_micro: dict[int, Delay] = {}
    for op in (op for op in ops if op.stage == stage):
        if op.kind == "forward":
            forward[op.micro] = op.version
        elif op.kind == "backward":
            waiting[op.micro] = op.version
        else:
            before = op.version - 1
            by_micro |= {micro: Delay(before - forward[micro], before - at) for micro, at in waiting.items()}
            waiting = {}
    return by_micro


def live_versions(ops: Sequence[PipelineOp], stage: int) -> int:
    """Returns the most versions of a stage's weights that a rank must have at once: the newest, and those that a later
    operation of ``ops`` uses."""
    last: dict[int, int] = {}
    own = [op for op in ops if op.stage == stage]
    for at, op in enumerate(own):
        if op.kind != "update":
            last[op.version] = at
    newest, most = 0, 1
    for at, op in enumerate(own):
        if op.kind == "update":
            newest = op.version
        later = {version for version, until in last.items() if version <= newest and until > at}
        most = max(most, len({newest} | later))
    return most


def in_flight(ops: Sequence[PipelineOp]) -> int:
    """Returns the most micro-batches whose forward pass a rank has begun and whose backward pass it has not ended."""
    held = most = 0
    for op in ops:
        held += {"forward": 1, "backward": 0, "update": 0}[op.kind]
        most = max(most, held)
        held -= op.kind == "backward"
    return most
