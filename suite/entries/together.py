"""Which techniques exclude one another, beyond the slots, one each in a stack (:class:`suite.loop.stack.Stack`).

A technique says what it takes (:attr:`suite.loop.technique.Technique.takes`): what plans how the blocks run has them
all to itself, since the schedule of another would run within its own. What asks for gradients of each rank's own
examples has none where ranks hold shards. What takes blocks away comes before what changes
each of them.
"""

from __future__ import annotations

import traceback
from typing import Any

from torch import nn

from suite.entries import jobs, packages
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import NO_OWN_GRADIENTS
from suite.record.job import Job, Spelling, StackError


def built(stack: str) -> Stack:
    """The stack as :func:`suite.entries.packages.built` makes it. Raises UnknownId, and StackError also for techniques
    that exclude one another."""
    whole = packages.built(stack)
    taking: dict[str, list[str]] = {}
    for name, part in whole.techniques.items():
        if part.takes and not part.is_reference:
            taking.setdefault(part.takes, []).append(name)
    for taken, names in taking.items():
        if len(names) > 1:
            raise StackError(f"{' and '.join(names)} cannot be stacked: each {taken}; keep one of them")
    active = {name: part for name, part in whole.techniques.items() if not part.is_reference}
    asking = [name for name, part in active.items() if part.takes_own_gradients]
    if asking and (sharding := [name for name, part in active.items() if part.shards_parameters]):
        raise StackError(f"{sharding[0]} and {' and '.join(asking)} cannot be stacked: {NO_OWN_GRADIENTS}")
    return whole


def run_of(job: Job, **options: Any) -> Run:
    """The run of a job as :func:`suite.entries.jobs.run_of` makes it; StackError also where a technique takes away what
    another one, before it in the stack, has changed."""
    try:
        return jobs.run_of(job, **options)
    except AttributeError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.name != nn.Module.get_submodule.__name__ or len(Spelling(job.stack).names) < 2:
            raise
        raise StackError(
            f"{job.stack} cannot be stacked so: a technique takes away blocks that one before it has changed; put first"
            " what takes them away, or leave it out"
        ) from error
