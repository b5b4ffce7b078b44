"""What recorded steps of every rank show of PipeDream-2BW: whose weights are how old, and which passes use."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.pipedream_2bw.technique import PipeDream2BW
from techniques.parallelism.shared.pipeline_probes import first_steps, stashed

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream2BW) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: PipeDream2BW) -> Mapping[str, float]:
    """What :func:`stashed` says."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    return stashed(recording, own.micro_batches, beside)
