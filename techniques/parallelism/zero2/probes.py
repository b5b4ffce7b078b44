"""What recorded steps of every rank, and one pass more, show of ZeRO's second stage."""

from __future__ import annotations

from collections.abc import Mapping

from suite.contract.recording import Recording
from suite.contract.run import Run
from techniques.parallelism.shared.shard_probes import partition
from techniques.parallelism.zero2.technique import Zero2

STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: Zero2) -> bool:
    """The first steps, so that the optimizer's state is known."""
    return run.step < STEPS


def probes(recording: Recording, own: Zero2) -> Mapping[str, float]:
    """``ranks``, what :func:`partition` says, and of one more backward pass, before anything else happens:
    ``whole_gradients``, the parameters that still have theirs; ``gradient_share``, the values of gradients that this
    rank keeps, over the model's."""
    run = recording.run
    if run.world_size == 1:
        return {"ranks": 1}
    shown = partition(recording)
    run.optimizer.zero_grad(set_to_none=True)
    run.backward(run.forward(recording.trace.batch))
    trained = [each for each in run.model.parameters() if each.requires_grad]
    held = [each.grad for group in run.optimizer.param_groups for each in group["params"] if each.grad is not None]
    kept = {
        "whole_gradients": sum(each.grad is not None for each in trained),
        "gradient_share": sum(each.numel() for each in held) / sum(each.numel() for each in trained),
    }
    run.optimizer.zero_grad(set_to_none=True)
    return {"ranks": run.world_size, **shown, **kept}
