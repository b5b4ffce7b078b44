"""Checks what recorded steps of every rank show of PipeDream-2BW: whose weights are how old, and which passes use."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.pipedream_2bw.technique import PipeDream2BW
from techniques.parallelism.shared.pipeline_probes import first_steps, stashed

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeDream2BW) -> bool:
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
    "held_by_several",
    "A layer is on one rank alone",
    "Section 3.1",
    id="layers_are_divided",
    baselines=["vit", "mae"],
    note="of models without a tied embedding, which is on the first rank and on the last",
)
@judged("unequal", "What two ranks hold stays equal to the bit", "Section 3.1", id="one_tied_embedding")
@judged(
    "alternates",
    "After its first forward passes every stage makes one forward and one backward pass in turn, over all updates",
    "Section 3.1",
    id="no_flush",
    equals=1.0,
)
@judged(
    "gradient_roundings",
    "The gradients are those of one process whose stages have these weights, each clipped by its own norm",
    "Section 3.1",
    id="own_gradients",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    baselines=["vit", "mae"],
    sizes=["pico", "nano"],
    note="of models without a tied embedding, which has two versions in one pass",
)
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
