"""Checks what recorded steps of every rank show of torchgpipe: GPipe's, and which micro-batch comes back first."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.shared.pipeline_probes import first_steps, holdings, of_all, synchronous
from techniques.parallelism.torchgpipe.technique import TorchGPipe

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: TorchGPipe) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 2")
@judged(
    "gradient_roundings",
    "The gradients are those of one process on the whole batch, clipped by one norm",
    "Section 2: transparent to the training",
    id="one_process_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
@judged(
    "last_first",
    "The micro-batch that went last comes back first, on every stage",
    "Section 2.2",
    id="last_comes_back_first",
    equals=1.0,
)
def probes(recording: Recording, own: TorchGPipe) -> Mapping[str, float]:
    """Includes what :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines. The micro-batch that
    went last is the one of which nothing is made twice."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    mirrored = [_last_first(kinds) for kinds in of_all(recording, [pass_.kind for pass_ in recording.trace.passes])]
    return {
        **synchronous(recording, own.micro_batches),
        "last_first": all(mirrored),
    }


def _last_first(kinds: list[str]) -> bool:
    """Tells whether the first backward pass follows the forward passes at once, and all others are made after a
    repetition: so it is of the one micro-batch whose graph was kept, the last."""
    count = kinds.count("backward")
    return kinds == ["forward"] * count + ["backward"] + ["forward", "backward"] * (count - 1)
