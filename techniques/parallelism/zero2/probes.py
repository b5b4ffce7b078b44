"""What recorded steps of every rank, and one pass more, show of ZeRO's second stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.parallelism.shared.shard_probes import partition
from techniques.parallelism.zero2.technique import Zero2
from techniques.shared.ranks import reduced_all_the_same, summed

STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: Zero2) -> bool:
    """The first steps, so that the optimizer's state is known."""
    return run.step < STEPS


def probes(recording: Recording, own: Zero2) -> Mapping[str, float]:
    """``ranks``, what :func:`partition` says, and of one more backward pass, before anything else happens:
    ``whole_gradients``, the parameters that still have theirs; ``gradient_share``, the values of gradients that this
    rank keeps, over the model's; ``norm``, of all ranks' shards together, over that of the mean of the ranks' own; and
    ``reduced_all_the_same``."""
    run = recording.run
    if run.world_size == 1:
        return {"ranks": 1}
    shown = partition(recording)
    run.optimizer.zero_grad(set_to_none=True)
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    own_gradients: dict[int, Tensor] = {}
    hooks = [
        parameter.register_hook(lambda it, at=at: own_gradients.update({at: it}))
        for at, parameter in enumerate(trained)
    ]
    run.backward(run.forward(recording.trace.batch))
    for hook in hooks:
        hook.remove()
    mean = [summed(recording, own_gradients[at].double()) / run.world_size for at in sorted(own_gradients)]
    held = [
        parameter.grad
        for group in run.optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    figures = {
        "whole_gradients": sum(parameter.grad is not None for parameter in trained),
        "norm": (summed(recording, _square(held)) / _square(mean)).sqrt().item(),
        "gradient_share": sum(tensor.numel() for tensor in held) / sum(parameter.numel() for parameter in trained),
    }
    run.optimizer.zero_grad(set_to_none=True)
    figures["reduced_all_the_same"] = reduced_all_the_same(recording)
    return {"ranks": run.world_size, **shown, **figures}


def _square(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.detach().double().square().sum() for tensor in tensors]).sum()
