"""Makes a run of a job: the stack and the baseline that it names are looked up, built and handed to the loop."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from suite.entries.installed import baseline_of
from suite.entries.spelling import build
from suite.loop.baseline import Baseline
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import Job, Split


def run_of(
    job: Job,
    *,
    technique: Technique | None = None,
    baseline: Baseline | None = None,
    weights: Path | None = None,
    split: Split | None = None,
    mesh: DeviceMesh | None = None,
) -> Run:
    """Returns the run of a job. ``technique`` and ``baseline`` stand in for those that the job names: for fake data,
    for tests.

    Raises UnknownId and StackError for what is not installed or cannot be stacked, and what :class:`Run` raises.
    """
    stack = build(job.stack) if technique is None else technique
    if not isinstance(stack, Stack):
        stack = Stack({type(stack).__name__: stack})
    return Run(job, stack, baseline or baseline_of(job.setting), weights=weights, split=split, mesh=mesh)
