"""What recorded steps of every rank show of torchgpipe: GPipe's, and which micro-batch comes back first."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.shared.pipeline_probes import first_steps, of_all, synchronous
from techniques.parallelism.torchgpipe.technique import TorchGPipe

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: TorchGPipe) -> bool:
    """The first steps."""
    return first_steps(run)


def probes(recording: Recording, own: TorchGPipe) -> Mapping[str, float]:
    """What :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines. ``last_first``: whether the
    micro-batch of which nothing is made twice comes back first, on every rank."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    mirrored = [_last_first(kinds) for kinds in of_all(recording, [pass_.kind for pass_ in recording.trace.passes])]
    return {
        **synchronous(recording, own.micro_batches),
        "last_first": all(mirrored),
    }


def _last_first(kinds: list[str]) -> bool:
    """Whether the first backward pass follows the forward passes at once, and all others are made after a repetition:
    so it is of the one micro-batch whose graph was kept, the last."""
    count = kinds.count("backward")
    return kinds == ["forward"] * count + ["backward"] + ["forward", "backward"] * (count - 1)
