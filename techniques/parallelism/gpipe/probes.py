"""What recorded steps of every rank show of GPipe: whose layers, which gradient, in which order."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.gpipe.technique import GPipe
from techniques.parallelism.shared.pipeline_probes import first_steps, synchronous

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: GPipe) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: GPipe) -> Mapping[str, float]:
    """What :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    return synchronous(recording, own.micro_batches)
