"""Checks what recorded steps of every rank show of layers on different ranks."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.mp_naive.technique import NaiveModelParallel
from techniques.parallelism.shared.pipeline_probes import first_steps, holdings, synchronous

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: NaiveModelParallel) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 1: a network that does not fit one accelerator is divided")
@judged(
    "gradient_roundings",
    "The gradients are those of one process on the whole batch, clipped by one norm",
    "Section 2",
    id="one_process_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
def probes(recording: Recording, own: NaiveModelParallel) -> Mapping[str, float]:
    """Computes what :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    return synchronous(recording, 1)
