"""The one door to a stack, and the one to a run: whoever is told a stack or a job comes in here.

What cannot be stacked is refused here, in a sentence. A slot is filled by one technique
(:class:`suite.loop.stack.Stack`). A technique says what else it takes (:attr:`suite.loop.technique.Technique.takes`):
what plans how the blocks run has them all to itself, since the schedule of another would run within its own. What asks
for gradients of each rank's own examples has none where ranks hold shards. What takes blocks away comes before what
changes each of them.

The steps behind the door (:mod:`suite.entries.spelling`, :mod:`suite.entries.packages`, :mod:`suite.entries.jobs`)
refuse nothing of that. Evidence depends on the code of the last, where a run begins, and not on the door's.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from suite.entries import jobs, packages
from suite.loop.baseline import Baseline
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import NO_OWN_GRADIENTS, Technique
from suite.record.job import Job, Spelling, Split, StackError


def built(stack: str) -> Stack:
    """The stack spelled as ``a+b:x=1``; ``""`` and ``baseline`` are the empty one.

    Raises UnknownId, and StackError for what cannot be stacked, a hyper-parameter that a technique has not, and a
    package that is not installed.
    """
    whole = packages.assembled(stack)
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


def run_of(
    job: Job,
    *,
    technique: Technique | None = None,
    baseline: Baseline | None = None,
    weights: Path | None = None,
    split: Split | None = None,
    mesh: DeviceMesh | None = None,
) -> Run:
    """The run of a job. ``technique`` and ``baseline`` stand in for those that the job names: for fake data, for tests.

    Raises what :func:`built` and :class:`Run` raise, and StackError also where a technique takes away what another one,
    before it in the stack, has changed.
    """
    stack = built(job.stack) if technique is None else technique
    try:
        return jobs.run_of(job, technique=stack, baseline=baseline, weights=weights, split=split, mesh=mesh)
    except AttributeError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.name != nn.Module.get_submodule.__name__ or len(Spelling(job.stack).names) < 2:
            raise
        raise StackError(
            f"{job.stack} cannot be stacked so: a technique takes away blocks that one before it has changed; put first"
            " what takes them away, or leave it out"
        ) from error
