"""What recorded steps of every rank show of Chimera: two replicas of each stage, which gradient, both directions."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.chimera.technique import Chimera
from techniques.parallelism.shared.pipeline_probes import first_steps, gradient_roundings, holdings, of_all, under_way

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: Chimera) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: Chimera) -> Mapping[str, float]:
    """What :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines. ``halves``: whether every
    rank makes half of its passes on the first stage."""
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
    """The share of this rank's backward passes that are of the stage that has the embedding; of two stages."""
    table = {name for name in recording.trace.before.parameters if name in own.stages.used[0] - own.stages.used[-1]}
    passes = recording.trace.of("backward")
    return sum(bool(pass_.gradients.keys() & table) for pass_ in passes) / len(passes)
