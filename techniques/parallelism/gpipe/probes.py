"""Checks what recorded steps of every rank show of GPipe: whose layers, which gradient, in which order."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.gpipe.technique import GPipe
from techniques.parallelism.shared.pipeline_probes import first_steps, holdings, synchronous

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: GPipe) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 2.1: consecutive layers form a cell, on one accelerator")
@judged(
    "gradient_roundings",
    "The gradients are those of one process on the whole batch, clipped by one norm",
    "Section 2.2: gradient updates are consistent whatever the number of partitions",
    id="one_process_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
def probes(recording: Recording, own: GPipe) -> Mapping[str, float]:
    """Computes what :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    return synchronous(recording, own.micro_batches)
