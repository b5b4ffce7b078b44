"""Checks what recorded steps of every rank show of PipeDream-2BW: whose weights are how old, and which passes use."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.pipedream_2bw.technique import PipeDream2BW
from techniques.parallelism.shared.pipeline_probes import first_steps, holdings, stashed, steady_order

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream2BW) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 3.1")
@judged_as(steady_order, "Section 3.1")
@judged_as(stashed, "Section 3.1")
@judged(
    "mismatch",
    "Both passes of a micro-batch use one version of the weights",
    "Section 3.1",
    id="one_version_of_a_batch",
)
def probes(recording: Recording, own: PipeDream2BW) -> Mapping[str, float]:
    """Computes what :func:`stashed` says."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    return stashed(recording, own.micro_batches, beside)
