"""Steps that are counted and traced aside, one process after another: a technique that crashes there, or hangs, is a
row, and those that come after it are counted by the next process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.entries.catalogue import UnknownId
from suite.entries.spelling import build
from suite.loop.technique import Unavailable
from suite.measure.at_scale.gpu_time import traced
from suite.measure.at_scale.paper_scale import Scale, StepCount, counted, why_not
from suite.measure.contenders.child import ContenderFailed, Deputy
from suite.measure.contenders.fork_servers import ThisProcess
from suite.record.job import StackError
from suite.record.operators import TracedStep
from suite.record.schema import Counters

LIMIT_S = 600.0  # of one count


class Aside:
    """Counts and traces as :mod:`suite.measure.at_scale.paper_scale` and :mod:`suite.measure.at_scale.gpu_time` do."""

    def __init__(self, deputy: Deputy) -> None:
        self._deputy = deputy

    def check(self, stacks: Iterable[str]) -> None:
        """Builds the stacks. Raises UnknownId or StackError for one that is misspelt; one whose technique crashes, or
        cannot be loaded, will be a row."""
        for stack in stacks:
            try:
                self._deputy(_built, stack, mendable=(UnknownId, StackError))
            except ContenderFailed:
                continue

    def counted(self, stack: str, scale: Scale) -> StepCount:
        """The step counted; what failed is a count with the reason. Raises ValueError for what refuses the scale."""
        try:
            return _counted_of(self._deputy(_counted, stack, scale, mendable=(ValueError,)))
        except ContenderFailed as failure:
            return StepCount(stack, unavailable=f"{failure.status}: {failure.reason}", failed=True)

    def traced(self, stack: str, scale: Scale) -> TracedStep:
        """The step's operators. Raises ValueError for what refuses the scale or reads values, ContenderFailed for what
        failed."""
        return TracedStep.from_json(json.dumps(self._deputy(_traced, stack, scale, mendable=(ValueError,))))


@contextmanager
def aside(limit_s: float = LIMIT_S) -> Iterator[Aside]:
    """An :class:`Aside` whose processes end with the block."""
    with deputy(limit_s) as one:
        yield Aside(one)


@contextmanager
def deputy(limit_s: float) -> Iterator[Deputy]:
    """A deputy that may train. Its processes are forked from this one, which has the libraries, or by a fork server
    where this one has gone back through a graph before: torch's threads outlive no fork."""
    with Deputy(limit_s, ThisProcess()) as forked, Deputy(limit_s) as served:
        try:
            forked(_go_back)
        except ContenderFailed:
            yield served
        else:
            yield forked


def _go_back() -> None:
    torch.set_num_threads(1)  # a forked process has no threads of a pool that was there before
    torch.zeros(1, requires_grad=True).sum().backward()


def _built(stack: str) -> None:
    build(stack)


def _counted(stack: str, scale: Scale) -> dict[str, Any]:
    torch.set_num_threads(1)
    return vars(counted(stack, scale))


def _counted_of(said: dict[str, Any]) -> StepCount:
    counters = said["counters"] and Counters.model_validate(said["counters"])
    batch = {name: tuple(shape) for name, shape in said["batch"].items()}
    return StepCount(**said | {"counters": counters, "batch": batch})


def _traced(stack: str, scale: Scale) -> dict[str, Any]:
    torch.set_num_threads(1)
    try:
        step: dict[str, Any] = json.loads(traced(stack, scale).as_json())
    except Unavailable as refusal:
        raise ValueError(str(refusal)) from None
    except RuntimeError as error:  # what torch raises where a tensor without values is asked for some
        raise ValueError(why_not(error)) from None
    return step
