"""What recorded steps of every rank show of PipeDream: whose weights are how old, and which a backward pass uses."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.pipedream.technique import PipeDream
from techniques.parallelism.shared.pipeline_probes import first_steps, stashed

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: PipeDream) -> Mapping[str, float]:
    """What :func:`stashed` says."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    return stashed(recording, 1, beside)
