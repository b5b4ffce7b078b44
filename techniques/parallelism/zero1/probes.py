"""Checks what recorded steps of every rank show of ZeRO's first stage: who updates what, and with which gradient."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.shared.shard_probes import partition
from techniques.parallelism.zero1.technique import Zero1

STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: Zero1) -> bool:
    """Selects the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "by_several",
    "No parameter is updated by two ranks",
    "Section 5.1: each process updates its own partition",
    id="no_parameter_has_two_owners",
)
@judged("by_none", "Every parameter that moves is updated by a rank", "Section 5.1", id="each_parameter_has_an_owner")
@judged(
    "update_roundings",
    "Each step is that of one process with the mean of the ranks' gradients, clipped by the norm of all shards",
    "Section 5.1",
    id="same_update",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged("unequal", "After the all-gather all ranks have one model, to the bit", "Section 5.1", id="equal_models")
def probes(recording: Recording, own: Zero1) -> Mapping[str, float]:
    """Includes what :func:`partition` says."""
    ranks = recording.run.world_size
    return {"ranks": ranks, **(partition(recording) if ranks > 1 else {})}
