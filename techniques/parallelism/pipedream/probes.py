"""Checks what recorded steps of every rank show of PipeDream: whose weights are how old, and which a backward pass
uses."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.pipedream.technique import PipeDream
from techniques.parallelism.shared.pipeline_probes import first_steps, holdings, stashed, steady_order

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 3.1")
@judged_as(steady_order, "Section 3.2: 1F1B")
@judged_as(stashed, "Section 3.2: 1F1B")
@judged(
    "mismatch",
    "A minibatch's backward pass uses the weights of its forward pass, on every stage",
    "Section 3.3: weight stashing",
    id="stashed",
)
def probes(recording: Recording, own: PipeDream) -> Mapping[str, float]:
    """Computes what :func:`stashed` says."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    return stashed(recording, 1, beside)
