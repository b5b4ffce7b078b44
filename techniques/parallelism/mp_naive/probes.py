"""What recorded steps of every rank show of layers on different ranks."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.mp_naive.technique import NaiveModelParallel
from techniques.parallelism.shared.pipeline_probes import first_steps, synchronous

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: NaiveModelParallel) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: NaiveModelParallel) -> Mapping[str, float]:
    """What :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    return synchronous(recording, 1)
