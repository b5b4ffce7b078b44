"""Checks what recorded steps of every rank, and one pass more, show of ZeRO's second stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.shared.shard_probes import partition
from techniques.parallelism.zero2.technique import Zero2
from techniques.shared.ranks import reduced_all_the_same, summed

STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: Zero2) -> bool:
    """Selects the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged(
    "whole_gradients",
    "Gradients are reduced as they arise, and no parameter keeps its whole one",
    "Section 5.2: after the reduction we no longer need the gradients and their memory can be released",
    id="no_whole_gradient_is_left",
)
@judged(
    "norm",
    "All shards together are as large as the mean of the ranks' own gradients",
    "Section 5.2",
    id="mean_of_the_ranks",
    equals=1.0,
    tolerance=0.00001,
    note=(
        "summed in float32; that each value is right shows in the update, which is blind to a common factor where it "
        "is clipped"
    ),
)
@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "by_several",
    "No parameter is updated by two ranks",
    "Section 5.2: each process updates its own partition",
    id="no_parameter_has_two_owners",
)
@judged("by_none", "Every parameter that moves is updated by a rank", "Section 5.2", id="each_parameter_has_an_owner")
@judged(
    "update_roundings",
    "Each step is that of one process with the mean of the ranks' gradients, clipped by the norm of all shards",
    "Section 5.2",
    id="same_update",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged("unequal", "After the all-gather all ranks have one model, to the bit", "Section 5.2", id="equal_models")
@judged(
    "reduced_all_the_same",
    "A pass that asks for each rank's own gradients, as the first of SAM's step does, leaves them unreduced",
    "This suite's",
    id="own_gradients",
)
def probes(recording: Recording, own: Zero2) -> Mapping[str, float]:
    """Includes what :func:`partition` says. ``whole_gradients`` and ``norm`` are of one more backward pass, before
    anything else happens. For a claim, ``gradient_share`` is the values of gradients that this rank keeps, over the
    model's."""
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
