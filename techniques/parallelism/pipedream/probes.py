"""What recorded steps of every rank show of PipeDream: whose weights are how old, and which a backward pass uses."""

from __future__ import annotations

from collections.abc import Mapping

from suite.contract.recording import Recording
from suite.contract.run import Run
from techniques.parallelism.pipedream.technique import PipeDream
from techniques.parallelism.shared.pipeline_probes import (
    copies,
    first_steps,
    gradient_roundings,
    holdings,
    lateness,
    steady_order,
)

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: PipeDream) -> Mapping[str, float]:
    """What :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines. ``versions_first``,
    ``versions_last``: copies of their weights that the first and the last rank have."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    versions = copies(recording, beside)
    used = recording.trace.of("backward")[0].parameters
    return {
        **holdings(recording),
        **steady_order(recording),
        **lateness(recording, 1),
        "versions_first": versions[0],
        "versions_last": versions[-1],
        "gradient_roundings": gradient_roundings(recording, recording.trace, used),
    }
