"""Puts together what ranks have done in a recorded step: for probes, of which every rank calls the same ones.

Gradients of a trace's backward pass are a rank's own: data parallelism reduces what the pass has accumulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.plain import apart, filled, gradients_of, plain_model

REPLICA = "module."  # what DistributedDataParallel calls the model that it wraps


def plainly(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns values by the names that the parameters have without a wrapper, float64."""
    return {name.removeprefix(REPLICA): value.detach().double() for name, value in values.items()}


def summed(recording: Recording, number: Tensor) -> Tensor:
    """Computes the sum over ranks."""
    total = number.clone()
    dist.all_reduce(total, group=recording.run.group)
    return total


def unequal(recording: Recording) -> int:
    """Counts the values of the model's parameters that are others on another rank than on the first, as the run is
    now."""
    own = torch.cat([parameter.detach().flatten() for parameter in recording.run.model.parameters()])
    first = own.clone()
    dist.broadcast(first, group=recording.run.group, group_src=0)
    return int(summed(recording, (own != first).sum()))


def reduced_all_the_same(recording: Recording) -> int:
    """Counts the parameters whose gradient is not the rank's own after a pass that asks for it (:meth:`Run.unreduced`),
    as the first pass of SAM's step does."""
    run = recording.run
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    own: dict[int, Tensor] = {}
    hooks = [
        parameter.register_hook(lambda it, at=at: own.update({at: it.clone()})) for at, parameter in enumerate(trained)
    ]
    run.optimizer.zero_grad(set_to_none=True)
    with run.unreduced():
        run.backward(run.forward(dict(recording.trace.batch)))
    kept = {at: parameter.grad for at, parameter in enumerate(trained)}
    for hook in hooks:
        hook.remove()
    run.optimizer.zero_grad(set_to_none=True)
    return sum((held := kept[at]) is None or not torch.equal(held, gradient) for at, gradient in own.items())


def mean_gradients(recording: Recording, trace: Trace) -> dict[str, Tensor]:
    """Computes the mean over ranks of the gradients that each made of its own examples, float64."""
    own = plainly(trace.of("backward")[0].gradients)
    return {name: summed(recording, own[name]) / recording.run.world_size for name in sorted(own)}


def whole_batch_roundings(recording: Recording, trace: Trace) -> float:
    """Computes how far the ranks' mean gradient is from one process's on the examples of all, in roundings of a
    norm."""
    batches: list[dict[str, Tensor]] = [{}] * recording.run.world_size
    dist.all_gather_object(batches, dict(trace.batch), group=recording.run.group)
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in trace.batch}
    plain = filled(plain_model(recording), plainly(trace.before.parameters))
    expected = gradients_of(recording, replace(trace, batch=whole), plain)
    mean = mean_gradients(recording, trace)
    return apart(mean, {name: gradient for name, gradient in expected.items() if name in mean})


def update_roundings(recording: Recording, traces: Sequence[Trace]) -> float:
    """Computes how far a run's first steps are from those of one process that has the ranks' mean gradient: clipped,
    and given to AdamW with the baseline's recipe, in float64. In float32 roundings of a weight and a learning rate."""
    recipe = recording.run.baseline.recipe_of(recording.run.job.setting)
    weights = {name: torch.nn.Parameter(value) for name, value in plainly(traces[0].before.parameters).items()}
    matrices = [weight for weight in weights.values() if weight.ndim >= 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": [weight for weight in weights.values() if weight.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)
    worst = 0.0
    for trace in traces:
        before, after = plainly(trace.before.parameters), plainly(trace.after.parameters)
        for name, gradient in mean_gradients(recording, trace).items():
            weights[name].data, weights[name].grad = before[name].clone(), gradient
        if recipe.gradient_clip:
            torch.nn.utils.clip_grad_norm_(weights.values(), recipe.gradient_clip)
        rate = recipe.learning_rate_at(trace.step)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        for name, weight in weights.items():
            unit = torch.finfo(torch.float32).eps * (before[name].abs() + rate)
            worst = max(worst, ((after[name] - weight.detach()).abs() / unit).max().item())
    return worst
