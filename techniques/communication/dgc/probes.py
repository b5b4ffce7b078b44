"""What steps of every rank show of Deep Gradient Compression: local clipping, what was sent, what is masked."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.communication.dgc.technique import DGC
from techniques.communication.shared.probed_step import Exchanged, one_more
from techniques.shared.ranks import mean_gradients, unequal

OF_ITS_BASELINES = True
Named = dict[str, Tensor]
BYTES = 8  # a float32 value, an int32 index


def records(run: Run, own: DGC) -> bool:
    """The first step, in the warm-up."""
    return run.step == 0


def probes(recording: Recording, own: DGC) -> Mapping[str, float]:
    """Of one step after the warm-up: ``received_roundings`` of the optimizer's gradients from what the formulas give;
    ``memory_roundings`` and ``velocity_roundings`` of both memories; ``unmasked``: entries that were sent and whose
    velocity or memory is not 0; ``bytes_over_formula``: of the message to each other rank and the all-reduce of the
    vectors. In the run's first step: ``first_share`` of a matrix' entries that got something, and ``step_roundings``
    of its weights from SGD's without momentum. ``unequal``: values in which the replicas differ."""
    first_share = _share(recording)
    velocities = {name: velocity.double().clone() for name, velocity in own.velocities.items()}
    step = one_more(recording, own)
    expected, memory, velocity, unmasked, numbers = _step(step, own, velocities)
    moved = {name: own.velocities[name].double() for name in velocity}
    sizes = {name: velocities[name].norm() + step.gradients[name].double().norm() for name in velocity}
    units = torch.finfo(torch.float32)
    return {
        "received_roundings": step.received_roundings(expected),
        "memory_roundings": step.memory_roundings(memory, {name: memory[name] + expected[name] for name in memory}),
        "velocity_roundings": max(
            ((moved[name] - velocity[name]).norm() / (sizes[name] + units.tiny)).item() for name in velocity
        )
        / units.eps,
        "unmasked": unmasked,
        "bytes_over_formula": step.sent_bytes / numbers,
        "first_share": first_share,
        "step_roundings": _step_roundings(recording.traces[0]),
        "unequal": unequal(recording),
    }


def _step(step: Exchanged, own: DGC, velocities: Mapping[str, Tensor]) -> tuple[Named, Named, Named, int, float]:
    """What the optimizer should have got, what should be remembered (v, u), entries that are wrongly remembered, and
    the bytes on a ring, from Algorithm 4 in float64."""
    ranks = step.recording.run.world_size
    reference = step.recording.run.baseline.recipe_of(step.recording.run.job.setting)
    norm = torch.cat([gradient.double().flatten() for gradient in step.gradients.values()]).norm().item()
    factor = min(1.0, reference.gradient_clip / math.sqrt(ranks) / (norm + 1e-6)) if reference.gradient_clip else 1.0
    own_gradients = {name: factor * gradient.double() for name, gradient in step.gradients.items()}
    mean = step.mean({name: gradient for name, gradient in own_gradients.items() if gradient.ndim < 2})
    sent: Named = {}
    expected: Named = {}
    memory: Named = {}
    velocity: Named = {}
    unmasked, size = 0, 0.0
    for name, gradient in own_gradients.items():
        if name in mean:
            velocity[name] = own.momentum * velocities[name] + mean[name]
            expected[name] = velocity[name]
            size += 2 * 4 * gradient.numel() / ranks
            continue
        u = own.momentum * velocities[name] + gradient
        v = step.before[name].double() + u
        count = max(1, math.ceil(own.ratio * v.numel()))
        chosen = torch.zeros(v.numel(), dtype=torch.bool)
        chosen[v.abs().flatten().argsort(descending=True)[:count].cpu()] = True
        chosen = chosen.view(v.shape)
        sent[name], memory[name], velocity[name] = v * chosen, v * ~chosen, u * ~chosen
        unmasked += int(((step.after[name] != 0) & chosen).sum() + ((own.velocities[name] != 0) & chosen).sum())
        size += BYTES * count
    expected |= step.mean(sent)
    return {name: expected[name] for name in own_gradients}, memory, velocity, unmasked, (ranks - 1) * size


def _share(recording: Recording) -> float:
    """Of the first step: entries of matrices that are not 0 in the mean, over those where any rank has a gradient; at
    two ranks with other examples between the ratio and twice that."""
    trace = recording.traces[0]
    got = trace.update.before.gradients
    shares = []
    for name, mean_gradient in mean_gradients(recording, trace).items():
        entries = int((mean_gradient != 0).sum())
        if mean_gradient.ndim > 1 and entries == mean_gradient.numel():
            shares.append(int((got[name] != 0).sum()) / entries)
    return sum(shares) / len(shares)


def _step_roundings(trace: Trace) -> float:
    """In float32 roundings of a weight and its step."""
    worst, before = 0.0, trace.update.before
    for name, gradient in before.gradients.items():
        hyper, old = before.hyper[name], before.parameters[name].double()
        step = hyper["lr"] * (gradient.double() + hyper["weight_decay"] * old)
        size = torch.finfo(torch.float32).eps * (old.abs() + step.abs()) + torch.finfo(torch.float32).tiny
        off = (trace.update.after.parameters[name].double() - (old - step)).abs()
        worst = max(worst, (off / size).max().item())
    return worst
