"""Checks what recorded steps of every rank show of Chimera: two replicas of each stage, which gradient, both
directions."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.chimera.technique import Chimera
from techniques.parallelism.shared.pipeline_probes import first_steps, gradient_roundings, holdings, of_all, under_way

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: Chimera) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "held_by_none", "Every parameter is held by a rank", "The definition of the partition", id="each_layer_has_a_rank"
)
@judged(
    "not_evaluated",
    "The model that is evaluated is that of all stages, to the bit",
    "This entry's evaluation",
    id="gathered",
)
@judged(
    "gradient_roundings",
    "The gradients are those of one process on the whole batch, clipped by one norm",
    "Section 1: no staleness, convergence-friendly",
    id="one_process_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
@judged("held_by_several", "Every stage is on two ranks", "Section 3.1", id="two_replicas", equals=1.0)
@judged(
    "unequal",
    "The two replicas of a stage stay equal to the bit",
    "Section 3.1: gradients are added up before the update",
    id="equal_replicas",
)
@judged(
    "halves",
    "Each rank makes half of its passes on the first stage, and half on the last",
    "Section 3.1; figure 3",
    id="both_directions",
    equals=1.0,
)
def probes(recording: Recording, own: Chimera) -> Mapping[str, float]:
    """Includes what :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    trace = recording.trace
    every = of_all(recording, ([pass_.kind for pass_ in trace.passes], _share_of_the_first_stage(recording, own)))
    return {
        **holdings(recording),
        "under_way_first": under_way(every[0][0]),
        "halves": all(share == 0.5 for _, share in every),
        "gradient_roundings": max(gradient_roundings(recording, trace) for trace in recording.traces),
    }


def _share_of_the_first_stage(recording: Recording, own: Chimera) -> float:
    """Computes the share of this rank's backward passes that are of the stage that has the embedding; of two stages."""
    table = {name for name in recording.trace.before.parameters if name in own.stages.used[0] - own.stages.used[-1]}
    passes = recording.trace.of("backward")
    return sum(bool(pass_.gradients.keys() & table) for pass_ in passes) / len(passes)
