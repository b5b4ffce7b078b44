"""Checks whether a run's first steps are those of AdamW on the device, to the bit: for probes of what updates on the
host."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from suite.reading.recording import Recording
from suite.reading.trace import Trace


def changed(recording: Recording, delay_after: int | None = None) -> int:
    """Counts the values that differ after any of the recorded steps, which begin with the first, from where torch's
    AdamW, clipped by torch, takes float32 copies of the parameters, rounded to their type; after ``delay_after`` steps,
    one update less."""
    run, count = recording.run, 0
    start = recording.traces[0].before.parameters
    masters = {
        id(parameter): nn.Parameter(start[name].float())
        for name, parameter in run.model.named_parameters()
        if parameter.requires_grad
    }
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    groups = [
        {"params": [masters[id(parameter)] for parameter in group["params"]], "weight_decay": group["weight_decay"]}
        for group in run.default_parameters()
    ]
    recipe = run.recipe
    adamw = torch.optim.AdamW(
        groups, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, foreach=False, fused=recipe.fused_optimizer
    )
    before = {names[key]: master.detach().clone() for key, master in masters.items()}
    for number, trace in enumerate(recording.traces, 1):
        gradients = accumulated(trace)
        for key, master in masters.items():
            master.grad = gradients[names[key]].float() if names[key] in gradients else None
        clipped = [parameter for group in adamw.param_groups for parameter in group["params"]]
        if recipe.gradient_clip:
            nn.utils.clip_grad_norm_(clipped, recipe.gradient_clip)
        for group in adamw.param_groups:
            group["lr"] = recipe.learning_rate_at(trace.step)
        adamw.step()
        after = {names[key]: master.detach().clone() for key, master in masters.items()}
        late = number > (math.inf if delay_after is None else delay_after)
        expected = before if late else after
        for name, value in expected.items():
            ours = trace.after.parameters[name]
            count += int((ours != value.to(ours.dtype)).sum())
        before = after
    return count


def accumulated(trace: Trace) -> dict[str, Tensor]:
    """Computes the sums of the gradients that a step's backward passes gave, one after the other."""
    sums: dict[str, Tensor] = {}
    for pass_ in trace.of("backward"):
        for name, gradient in pass_.gradients.items():
            sums[name] = sums[name] + gradient if name in sums else gradient
    return sums


def waiting_gradients(model: nn.Module) -> list[int]:
    """Returns how many gradients the model's parameters hold each time that one more arrives, from now on; begins with
    0."""
    counts = [0]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def note(_: Tensor) -> None:
        counts.append(sum(parameter.grad is not None for parameter in parameters))

    for parameter in parameters:
        parameter.register_hook(note)
    return counts
