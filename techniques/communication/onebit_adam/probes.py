"""Tells what steps of every rank show of 1-bit Adam: Adam at first, then one bit there and back, and nothing lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.communication.onebit_adam.technique import OneBitAdam
from techniques.communication.shared.probed_step import Exchanged, one_more
from techniques.shared.ranks import summed, unequal, update_roundings

OF_ITS_BASELINES = True
UNIT = torch.finfo(torch.float32).eps


def warmup_steps(run: Run, own: OneBitAdam) -> int:
    """Returns T_w: its share of the run's steps, and one at least."""
    return max(1, round(own.warmup * run.recipe.steps))


def records(run: Run, own: OneBitAdam) -> bool:
    """Tells whether it is one of the warm-up's first two, from which AdamW can be followed, or its last, or the middle
    one of all."""
    warmup = warmup_steps(run, own)
    return run.step in (0, min(1, warmup - 1), warmup - 1, run.recipe.steps // 2)


@judged(
    "warmup_roundings",
    "The warm-up's steps are AdamW's with the ranks' mean gradient",
    "Algorithm 1, warm-up",
    id="warmup_is_adam",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged(
    "thawed", "After the warm-up the second moment stays as it is, to the bit", "Algorithm 1", id="variance_is_frozen"
)
@judged(
    "sent_roundings",
    "Of a tensor every entry that a rank sends has one magnitude, the root mean square of momentum and memory",
    "Section 4.1; DeepSpeed's scale",
    id="one_size",
    at_most=64.0,  # a norm, a momentum and a difference
)
@judged("wrong_signs", "Every entry that a rank sends has the sign of momentum and memory", "Section 4.1", id="signs")
@judged(
    "telescope_roundings",
    "The new momentum is the mean of the ranks', but for what worker and server remember: over any number of steps "
    "nothing is lost",
    "Algorithm 1: error compensation on both sides",
    id="two_memories",
    at_most=64.0,
)
@judged(
    "step_roundings",
    "A step goes along the momentum over the root of the frozen second moment",
    "Algorithm 1",
    id="preconditioned_momentum",
    at_most=64.0,
)
@judged("unequal", "Replicas stay equal to the bit", "Algorithm 1: all apply the same momentum", id="equal_replicas")
def probes(recording: Recording, own: OneBitAdam) -> Mapping[str, float]:
    """``warmup_roundings`` is of the first steps, ``thawed`` compares the warm-up's end with a step after it,
    ``step_roundings`` is of the middle step: theta - eta m / (sqrt(v) + eps). What this rank has sent is momentum and
    memory, less the memory after it. For a claim, ``bytes_over_formula`` is of a step's messages."""
    run = recording.run
    *warmup, middle = recording.traces
    warm = update_roundings(recording, [trace for trace in warmup if trace.step < 2])
    step = one_more(recording, own)
    names, trace = list(step.gradients), step.trace
    first = {name: trace.before.state[name]["first_moment"].double() for name in names}
    limit = run.recipe.gradient_clip
    norm = torch.cat([gradient.double().flatten() for gradient in step.gradients.values()]).norm().item()
    factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
    beta1 = run.recipe.beta1
    local = [beta1 * first[name] + (1 - beta1) * factor * step.gradients[name].double() for name in names]
    flat = torch.cat([tensor.flatten() for tensor in local])
    lengths = [tensor.numel() for tensor in local]
    wanted = flat + step.before["worker"].double()[: len(flat)]
    sent = wanted - step.after["worker"].double()[: len(flat)]
    off, wrong = _one_size(wanted, sent, lengths)
    received = torch.cat([trace.after.state[name]["first_moment"].double().flatten() for name in names])
    return {
        "warmup_roundings": warm,
        "thawed": sum(
            int((trace.after.state[name]["second_moment"] != warmup[-1].after.state[name]["second_moment"]).sum())
            for name in names
        ),
        "sent_roundings": off,
        "wrong_signs": wrong,
        "telescope_roundings": _telescope(step, sent, received),
        "step_roundings": _step_roundings(middle, warmup_steps(run, own)),
        "bytes_over_formula": step.sent_bytes / _bytes(lengths, run.world_size),
        "unequal": unequal(recording),
    }


def _one_size(wanted: Tensor, sent: Tensor, lengths: list[int]) -> tuple[float, int]:
    """Returns how far magnitudes of what was sent are from the root mean square of what a tensor wanted, and how many
    have another sign than it, roundings aside."""
    worst, wrong = 0.0, 0
    for a, q in zip(wanted.split(lengths), sent.split(lengths), strict=True):
        size = a.norm() / math.sqrt(len(a)) + torch.finfo(torch.float32).tiny
        worst = max(worst, ((q.abs() - size).abs().max() / (size + a.abs().max())).item() / UNIT)
        wrong += int((a * q < -64 * UNIT * a.abs().max() * size).sum())
    return worst, wrong


def _telescope(step: Exchanged, sent: Tensor, received: Tensor) -> float:
    """Measures the error of the telescoping sum, where the servers' parts lie end to end."""
    recording, run = step.recording, step.recording.run
    mean = summed(recording, sent) / run.world_size
    part = len(step.before["server"])
    servers = torch.zeros(run.world_size * part, dtype=torch.float64, device=sent.device)
    servers[run.rank * part : (run.rank + 1) * part] = step.before["server"].double() - step.after["server"].double()
    expected = mean + summed(recording, servers)[: len(mean)]
    return ((received - expected).norm() / expected.norm()).item() / UNIT


def _step_roundings(trace: Trace, warmup: int) -> float:
    update, worst = trace.update, 0.0
    for name, state in update.after.state.items():
        hyper, before = update.before.hyper[name], update.before.parameters[name]
        beta1, beta2 = hyper["betas"]
        count = float(state["step"])
        deviation = (state["second_moment"].double() / (1 - beta2**warmup)).sqrt() + hyper["eps"]
        direction = state["first_moment"].double() / (1 - beta1**count) / deviation
        direction = torch.where(state["second_moment"] > 0, direction, 0.0)
        expected = (1 - hyper["lr"] * hyper["weight_decay"]) * before.double() - hyper["lr"] * direction
        size = UNIT * (before.double().abs() + hyper["lr"] * direction.abs()) + torch.finfo(torch.float32).tiny
        worst = max(worst, ((update.after.parameters[name].double() - expected).abs() / size).max().item())
    return worst


def _bytes(lengths: list[int], ranks: int) -> float:
    """Counts the bytes on a ring, of rank 0, which has as large a message as the all-to-all's whole: a bit an entry
    there and back, and a float32 for each tensor's piece in each part."""
    part = 8 * math.ceil(sum(lengths) / (8 * ranks))
    edges = [0, *accumulate(lengths), ranks * part]
    pieces = [
        sum(min(high, (rank + 1) * part) > max(low, rank * part) for low, high in pairwise(edges))
        for rank in range(ranks)
    ]
    share = (ranks - 1) / ranks
    bits = ranks * part / 8
    there = max(4 * sum(pieces) + bits, *(ranks * 4 * piece + bits for piece in pieces[:1]))
    return share * (there + ranks * 4 * max(pieces) + bits)
