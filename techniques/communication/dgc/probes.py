"""Tells what steps of every rank show of Deep Gradient Compression: local clipping, what was sent, what is masked."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.communication.dgc.technique import DGC, ratio_at
from techniques.communication.shared.probed_step import Exchanged, one_more
from techniques.shared.ranks import mean_gradients, unequal

OF_ITS_BASELINES = True
Named = dict[str, Tensor]
STAGES = {
    0.0: 0.25,
    0.049: 0.25,
    0.051: 0.0625,
    0.099: 0.0625,
    0.101: 0.015625,
    0.149: 0.015625,
    0.151: 0.00390625,
    0.199: 0.00390625,
    0.2: 0.001,
    1.0: 0.001,
}
BYTES = 8  # a float32 value, an int32 index


def records(run: Run, own: DGC) -> bool:
    """Tells whether it is the first step, in the warm-up."""
    return run.step == 0


@judged(
    "received_roundings",
    "The optimizer gets the mean over ranks of the largest entries of each one's summed velocities, of gradients that "
    "were clipped locally",
    "Section 3.2; Algorithm 4",
    id="momentum_correction",
    at_most=256.0,  # of the clipping norm, and four operations
)
@judged(
    "memory_roundings",
    "What was not sent is remembered",
    "Section 3.1: local gradient accumulation",
    id="nothing_is_lost",
    at_most=256.0,
)
@judged(
    "velocity_roundings", "Every entry that was not sent keeps its velocity", "Equation 4", id="velocity", at_most=256.0
)
@judged(
    "unmasked",
    "What was sent has neither velocity nor memory left",
    "Section 3.3: momentum factor masking",
    id="masked",
)
@judged(
    "first_share",
    "Training begins with a quarter of the entries",
    "Section 3.3: 75 % sparsity first",
    id="warm_up",
    at_least=0.25,
    note="of the mean over two ranks, whose entries are in part the same",
)
@judged(
    "off_stages",
    "Over the warm-up 75, 93.75, 98.44 and 99.6 % of the entries stay behind, each as long, and then 99.9 %",
    "Section 3.3: sparsity in the warm-up, and 99.9 % after it",
    id="warm_up_stages",
    note="at both ends of each stage, of a warm-up of a fifth of the run",
)
@judged(
    "step_roundings",
    "The optimizer steps along what it gets, and keeps no momentum of its own",
    "Algorithm 4",
    id="sgd_step",
    at_most=8.0,
)
@judged("unequal", "Replicas stay equal to the bit", "Algorithm 4: all apply the same mean", id="equal_replicas")
@judged(
    "bytes_over_formula",
    "A rank sends 8 bytes for each of 0.1 % of a matrix' entries to each other one: a value and an index",
    id="bytes",
    equals=1.0,
    tolerance=0.0001,  # bytes are whole numbers
    kind="counted",
    note="the paper's section 3.1 packs a value and a 16-bit run of zeros: 6 bytes",
)
def probes(recording: Recording, own: DGC) -> Mapping[str, float]:
    """All are of one step after the warm-up, but ``first_share`` and ``step_roundings`` of the run's first step, and
    ``unequal`` of its end."""
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
        "off_stages": sum(abs(ratio_at(at, 0.001, 0.2) - share) > 1e-12 for at, share in STAGES.items()),
        "step_roundings": _step_roundings(recording.traces[0]),
        "unequal": unequal(recording),
    }


def _step(step: Exchanged, own: DGC, velocities: Mapping[str, Tensor]) -> tuple[Named, Named, Named, int, float]:
    """Returns what the optimizer should have got, what should be remembered (v, u), entries that are wrongly
    remembered, and the bytes on a ring, from Algorithm 4 in float64."""
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
    """Returns the share, in the first step: entries of matrices that are not 0 in the mean, over those where any rank
    has a gradient; at two ranks with other examples between the ratio and twice that."""
    trace = recording.traces[0]
    got = trace.update.before.gradients
    shares = []
    for name, mean_gradient in mean_gradients(recording, trace).items():
        entries = int((mean_gradient != 0).sum())
        if mean_gradient.ndim > 1 and entries == mean_gradient.numel():
            shares.append(int((got[name] != 0).sum()) / entries)
    return sum(shares) / len(shares)


def _step_roundings(trace: Trace) -> float:
    """Returns the step's error in float32 roundings of a weight and its step."""
    worst, before = 0.0, trace.update.before
    for name, gradient in before.gradients.items():
        hyper, old = before.hyper[name], before.parameters[name].double()
        step = hyper["lr"] * (gradient.double() + hyper["weight_decay"] * old)
        size = torch.finfo(torch.float32).eps * (old.abs() + step.abs()) + torch.finfo(torch.float32).tiny
        off = (trace.update.after.parameters[name].double() - (old - step)).abs()
        worst = max(worst, (off / size).max().item())
    return worst
