"""Steps that are counted and traced aside, one process after another: a technique that crashes there, or hangs, is a
row, and those that come after it are counted by the next process. One that takes more than its share of a core says
where it was."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from suite.entries.catalogue import UnknownId
from suite.entries.together import built
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import Scale, StepCount, counted, why_not
from suite.measure.at_scale.processor_limit import OutOfTime, processor_limit
from suite.measure.contenders import deputies
from suite.process.child import ContenderFailed
from suite.process.groups import Deputy
from suite.process.servers import ThisProcess
from suite.record.job import StackError
from suite.record.operator_counts import TracedStep
from suite.record.schema import Counters
from suite.topics.modelled_time.traced import traced

LIMIT_S = 600.0  # of the clock, of one count: of what hangs
CORE_S = 60.0  # of one core, of one count: a billion parameters take some twenty

T = TypeVar("T")


class Aside:
    """Counts and traces as :mod:`suite.measure.at_scale.full_size` and :mod:`suite.topics.modelled_time.traced` do,
    each step in at most ``core_s`` seconds of a core."""

    def __init__(self, deputy: Deputy, core_s: float = CORE_S) -> None:
        self._deputy, self.core_s = deputy, core_s

    def check(self, stacks: Iterable[str]) -> None:
        """Builds the stacks. Raises UnknownId or StackError for one that is misspelt; one whose technique crashes, or
        cannot be loaded, will be a row."""
        for stack in stacks:
            try:
                self._deputy(_built, stack, mendable=(UnknownId, StackError))
            except ContenderFailed:
                continue

    def asked(self, question: Callable[..., T], *arguments: Any) -> T:
        """Returns ``question(*arguments)``, a plain value, for which techniques are loaded. Raises UnknownId or
        ValueError as it does, ContenderFailed where a technique fails."""
        return self._deputy(question, *arguments, mendable=(UnknownId, ValueError))

    def counted(self, stack: str, scale: Scale) -> StepCount:
        """Returns the step counted; what failed is a count with the reason. Raises ValueError for what refuses the
        scale."""
        try:
            return _counted_of(self._deputy(_counted, stack, scale, self.core_s, mendable=(OutOfTime, ValueError)))
        except OutOfTime as error:  # its process may be in any state
            self._deputy.close()
            return StepCount(stack, unavailable=f"{error}; give it more --minutes", failed=True)
        except ContenderFailed as failure:
            return StepCount.of_failure(stack, failure)

    def traced(self, stack: str, scale: Scale) -> TracedStep:
        """Returns the step's operators. Raises ValueError for what refuses the scale or reads values, ContenderFailed
        for what failed."""
        said = self._deputy(_traced, stack, scale, self.core_s, mendable=(ValueError,))
        return TracedStep.from_json(json.dumps(said))


@contextmanager
def aside(core_s: float = CORE_S, limit_s: float = LIMIT_S) -> Iterator[Aside]:
    """Has an :class:`Aside` whose processes end with the block."""
    with deputy(max(limit_s, 10 * core_s)) as one:
        yield Aside(one, core_s)


@contextmanager
def deputy(limit_s: float) -> Iterator[Deputy]:
    """Has a deputy that may train. Its processes are forked from this one, which has the libraries, or by a fork server
    where this one has gone back through a graph before: torch's threads outlive no fork."""
    with deputies.deputy(limit_s, ThisProcess()) as forked, deputies.deputy(limit_s) as served:
        try:
            forked(_go_back)
        except ContenderFailed:
            yield served
        else:
            yield forked


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Meanwhile the collector looks at no object that is there already. A count takes stock of the heap before its run
    and at its end (:mod:`suite.meters.holders`), and what both find is none of the run's: libraries have a million such
    objects, and walking over them was half of the time of a small model's count."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _go_back() -> None:
    torch.set_num_threads(1)  # a forked process has no threads of a pool that was there before
    torch.zeros(1, requires_grad=True).sum().backward()


def _built(stack: str) -> None:
    built(stack)


def _counted(stack: str, scale: Scale, core_s: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    with processor_limit(core_s), heap_set_aside():
        return vars(counted(stack, scale))


def _counted_of(said: dict[str, Any]) -> StepCount:
    counters = said["counters"] and Counters.model_validate(said["counters"])
    batch = {name: tuple(shape) for name, shape in said["batch"].items()}
    return StepCount(**said | {"counters": counters, "batch": batch})


def _traced(stack: str, scale: Scale, core_s: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    try:
        with processor_limit(core_s):
            step: dict[str, Any] = json.loads(traced(stack, scale).as_json())
    except OutOfTime:
        raise
    except Unavailable as refusal:
        raise ValueError(str(refusal)) from None
    except RuntimeError as error:  # what torch raises where a tensor without values is asked for some
        raise ValueError(why_not(error)) from None
    return step
