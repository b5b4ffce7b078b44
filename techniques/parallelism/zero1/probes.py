"""What recorded steps of every rank show of ZeRO's first stage: who updates what, and with which gradient."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.shared.shard_probes import partition
from techniques.parallelism.zero1.technique import Zero1

STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: Zero1) -> bool:
    """The first steps, so that the optimizer's state is known."""
    return run.step < STEPS


def probes(recording: Recording, own: Zero1) -> Mapping[str, float]:
    """``ranks``, and what :func:`partition` says."""
    ranks = recording.run.world_size
    return {"ranks": ranks, **(partition(recording) if ranks > 1 else {})}
