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
from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import Scale, StepCount, counted, why_not
from suite.measure.at_scale.processor_limit import OutOfTime, processor_limit
from suite.measure.contenders import deputies
from suite.meters.operators import OperatorTrace
from suite.process.child import ContenderFailed
from suite.process.groups import Deputy
from suite.process.servers import ThisProcess
from suite.record.job import StackError
from suite.record.operator_counts import TracedStep
from suite.record.schema import Counters
from suite.topics.modelled_time.traced import trace_step, traced

LIMIT_S = 600.0  # of the clock, of one count: of what hangs
CORE_S = 60.0  # of one core, of one count: a billion parameters take some twenty

T = TypeVar("T")


class Aside:
    """Counts and traces as :mod:`suite.measure.at_scale.full_size` and :mod:`suite.topics.modelled_time.traced` do,
    each step in at most ``core_s`` seconds of a core. With ``traces_too`` the run that counts is the one that is
    traced."""

    def __init__(self, deputy: Deputy, core_s: float = CORE_S, traces_too: bool = False) -> None:
        self._deputy, self.core_s, self.traces_too = deputy, core_s, traces_too
        self._traces: dict[tuple[str, Scale], TracedStep] = {}

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
            said, step = self._deputy(
                _counted, stack, scale, self.core_s, self.traces_too, mendable=(OutOfTime, ValueError)
            )
            if step is not None:
                self._traces[stack, scale] = TracedStep.from_json(json.dumps(step))
            return _counted_of(said)
        except OutOfTime as error:  # its process may be in any state
            self._deputy.close()
            return StepCount(stack, unavailable=f"{error}; give it more --minutes", failed=True)
        except ContenderFailed as failure:
            return StepCount.of_failure(stack, failure)

    def traced(self, stack: str, scale: Scale) -> TracedStep:
        """Returns the step's operators. Raises ValueError for what refuses the scale or reads values, ContenderFailed
        for what failed."""
        if (stack, scale) in self._traces:
            return self._traces[stack, scale]
        said = self._deputy(_traced, stack, scale, self.core_s, mendable=(ValueError,))
        return TracedStep.from_json(json.dumps(said))


@contextmanager
def aside(core_s: float = CORE_S, limit_s: float = LIMIT_S, traces_too: bool = False) -> Iterator[Aside]:
    """Has an :class:`Aside` whose processes end with the block."""
    with deputy(max(limit_s, 10 * core_s)) as one:
        yield Aside(one, core_s, traces_too)


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


def _counted(stack: str, scale: Scale, core_s: float, traces_too: bool) -> tuple[dict[str, Any], Any]:
    """Counts a step, and traces the one after it where that is wanted and goes: what does not has its reason when it is
    traced alone, as has a compiled one."""
    torch.set_num_threads(1)
    steps: list[TracedStep] = []

    def then(run: Run) -> None:
        if traces_too and not run.recipe.compile:
            try:
                steps.append(trace_step(run, OperatorTrace()))
            except OutOfTime:
                raise
            except (RuntimeError, ValueError):
                return

    with processor_limit(core_s), heap_set_aside():
        count = vars(counted(stack, scale, then))
    return count, _plain(steps[0]) if steps else None


def _counted_of(said: dict[str, Any]) -> StepCount:
    counters = said["counters"] and Counters.model_validate(said["counters"])
    batch = {name: tuple(shape) for name, shape in said["batch"].items()}
    return StepCount(**said | {"counters": counters, "batch": batch})


def _plain(step: TracedStep) -> Any:
    """Returns a trace as plain values: a text as long as its own would be cut off on the way."""
    return json.loads(step.as_json())


def _traced(stack: str, scale: Scale, core_s: float) -> Any:
    torch.set_num_threads(1)
    try:
        with processor_limit(core_s):
            return _plain(traced(stack, scale))
    except OutOfTime:
        raise
    except Unavailable as refusal:
        raise ValueError(str(refusal)) from None
    except RuntimeError as error:  # what torch raises where a tensor without values is asked for some
        raise ValueError(why_not(error)) from None
