"""Checks what recorded steps of every rank show of overlapped reductions; and single passes, overlapped and serial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.device.random_state import RandomState, replayed
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.comm_overlap.technique import CommunicationOverlap
from techniques.shared.plain import apart
from techniques.shared.ranks import reduced_all_the_same, summed, unequal, update_roundings

STEPS = 3  # with as many the optimizer's state counts, too
BUCKETS = 8  # of a pass that is looked at; at small sizes the usual bucket holds the whole model


def records(run: Run, own: CommunicationOverlap) -> bool:
    """Selects the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "serial_begun_early",
    "The serial form begins none before the pass is over",
    "This entry's control",
    id="serial_waits_for_the_pass",
)
@judged("differing", "Gradients are the serial form's to the bit", "Section 3.2.3", id="same_gradients")
@judged(
    "mean_roundings",
    "They are the mean of those that each rank makes of its own examples",
    "Section 3.1",
    id="mean_of_the_ranks",
    at_most=64.0,  # of a sum
)
@judged(
    "update_roundings",
    "Each step is that of one process with the mean of the ranks' gradients",
    "Section 3.1",
    id="same_update",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged("unequal", "The ranks' models stay equal to the bit", "Section 3.1", id="equal_models")
@judged(
    "reduced_all_the_same",
    "A pass that asks for each rank's own gradients, as the first of SAM's step does, leaves them unreduced",
    "This suite's",
    id="own_gradients",
)
def probes(recording: Recording, own: CommunicationOverlap) -> Mapping[str, float]:
    """Gradients are those of passes in buckets of an eighth of the model; ``unequal`` is of the run's end. For a claim,
    ``begun_early`` is the share of reductions that began while gradients were still to come."""
    run = recording.run
    if run.world_size == 1:
        return {"ranks": 1}
    shown = {"unequal": unequal(recording), "update_roundings": update_roundings(recording, recording.traces)}
    shown["reduced_all_the_same"] = reduced_all_the_same(recording)
    if own.reduction is not None:
        own.reduction.remove()
    random = RandomState.now(run.device)
    batch = recording.trace.batch
    nbytes = sum(
        parameter.numel() * parameter.element_size() for parameter in run.model.parameters() if parameter.requires_grad
    )
    gradients, early = {}, {}
    with replayed(random):
        run.optimizer.zero_grad(set_to_none=True)
        run.backward(run.forward(dict(batch)))  # nobody reduces it
    own_gradients = [
        parameter.grad.detach().double() for parameter in run.model.parameters() if parameter.grad is not None
    ]
    mean = {str(place): summed(recording, gradient) / run.world_size for place, gradient in enumerate(own_gradients)}
    for overlapped in (True, False):
        trial = replace(own, overlapped=overlapped, bucket_mb=nbytes / BUCKETS / 2**20)
        with replayed(random):
            gradients[overlapped], early[overlapped] = _pass(run, trial, batch)
    own.parameters(run.optimizer.param_groups, run)
    pairs = zip(gradients[True], gradients[False], strict=True)
    differing = sum(int((one != other).sum()) for one, other in pairs)
    return {
        "ranks": run.world_size,
        **shown,
        "differing": differing,
        "mean_roundings": apart({str(place): gradient for place, gradient in enumerate(gradients[True])}, mean),
        "begun_early": early[True],
        "serial_begun_early": early[False],
    }


def _pass(run: Run, trial: CommunicationOverlap, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], float]:
    """Returns the gradients of a pass, and the share of reductions that began before its last gradient."""
    trial.parameters(run.optimizer.param_groups, run)
    run.optimizer.zero_grad(set_to_none=True)
    run.backward(run.forward(dict(batch)))
    trial.after_backward(run)
    if trial.reduction is not None:
        trial.reduction.remove()
    gradients = [parameter.grad.detach().clone() for parameter in run.model.parameters() if parameter.grad is not None]
    run.optimizer.zero_grad(set_to_none=True)
    last = max(place for place, event in enumerate(trial.order) if event == "gradient")
    begun = [place < last for place, event in enumerate(trial.order) if event == "begin"]
    return gradients, torch.tensor(begun).float().mean().item()
