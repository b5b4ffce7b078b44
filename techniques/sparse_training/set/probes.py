"""Checks what the steps of a short run show of SET: equation 1 and the algorithm read off masks, weights and their
state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.sparse.connections import (
    changed,
    count_change,
    dead,
    dead_moved,
    erk_connections,
    mask,
    moved,
    off_zero,
    paths_of,
    pooled,
    sparse_flops,
)
from techniques.sparse_training.set.technique import Set


def records(run: Run, own: Set) -> bool:
    """Selects all steps: an evolution, what follows it, and that none comes in between."""
    return not own.is_reference


@judged(
    "sparsity",
    "Layers are sparse from the start: 80 % of the weights of all layers are no connections.",
    "Equation 1",
    equals=0.8,
    tolerance=0.02,  # five standard deviations of 16 000 draws
    note="the epsilon of 80 % sparsity in all; each connection is drawn by itself",
)
@judged(
    "off_erdos_renyi",
    "A layer from n to m units has epsilon (n + m) connections on average: linear in the width, not quadratic.",
    "Equation 1",
    id="erdos_renyi",
    at_most=5.0,  # standard deviations
)
@judged(
    "connections_changed",
    "As many connections are added as were removed: their number in each layer stays.",
    "Algorithm of the paper, lines 13 to 17",
    id="constant_connections",
)
@judged(
    "off_schedule",
    "The topology evolves after every epoch but the last, and at no other time.",
    "Algorithm of the paper, lines 9 to 17",
    id="schedule",
    note="an epoch, or a 25th of a shorter run, and 2 steps at least",
)
@judged(
    "wrongly_dropped",
    "The share zeta = 0.3 of the smallest positive weights goes, and the same share of the largest negative weights; "
    "all others stay.",
    "Algorithm of the paper, lines 13 and 14",
    id="dropped",
)
@judged(
    "growth_not_random",
    "New connections are at random places.",
    "Algorithm of the paper, line 16",
    id="random_growth",
    at_most=5.0,  # standard deviations
)
@judged(
    "grown_off_zero",
    "New connections start at zero, with fresh optimizer state.",
    "SET-MLP-Keras-Weights-Mask of the authors' code",
    id="grown_at_zero",
)
@judged(
    "moved",
    "An evolution changes no weight that stays, and none of its optimizer state.",
    "Algorithm of the paper, lines 12 to 17",
    id="nothing_else_moves",
)
@judged(
    "dead",
    "Weights that are no connections are zero after every step, and get neither gradient nor momentum.",
    "Equation 1: there is no such weight",
    id="inactive_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient.",
    "Equation 1: there is no such weight",
    id="inactive_weights_stay_zero",
)
def probes(recording: Recording, own: Set) -> Mapping[str, float]:
    """``off_erdos_renyi`` and ``growth_not_random`` (the mean rank of the grown connections' places) are in standard
    deviations; what is off is counted. For a claim, ``sparse_flops`` is of the matrices' products, over dense ones."""
    if own.is_reference:
        return {}
    run, traces = recording.run, recording.traces
    paths = paths_of(run)
    first = [mask(traces[0].before, path) for path in paths]
    epoch = math.ceil(len(run.data.train) / run.recipe.batch_size)
    interval = own.interval or max(2, min(epoch, run.recipe.steps // 25))
    counts = dict.fromkeys(("off_schedule", "wrongly_dropped", "grown_off_zero", "moved", "dead"), 0)
    ranks: list[Tensor] = []
    for trace in traces:
        evolves = (trace.step + 1) % interval == 0 and trace.step + 1 < run.recipe.steps
        counts["off_schedule"] += changed(trace.before, trace.after, paths) != evolves
        counts["dead"] += sum(dead(trace, path) for path in paths)
        if evolves:
            stays = {path: _stays(trace, path, own.zeta, own.block) for path in paths}
            counts["wrongly_dropped"] += sum(_gone(trace, path, stay) for path, stay in stays.items())
            counts["moved"] += moved(trace.update.after, trace.after, stays)
            for path, stay in stays.items():
                grown = mask(trace.after, path) & ~stay
                counts["grown_off_zero"] += off_zero(trace.after, path, grown)
                ranks.append(_ranks(*(tensor[:: own.block, :: own.block] for tensor in (grown, ~stay))))
    return {
        **counts,
        "sparsity": 1 - sum(int(tensor.sum()) for tensor in first) / sum(tensor.numel() for tensor in first),
        "off_erdos_renyi": _off_erdos_renyi(first, own),
        "connections_changed": count_change(traces, paths),
        "growth_not_random": _off_uniform(ranks),
        "dead_moved": dead_moved(recording, own, paths),
        "sparse_flops": sparse_flops(recording, paths),
    }


def _off_erdos_renyi(masks: Sequence[Tensor], own: Set) -> float:
    shapes = [tuple(tensor.shape) for tensor in masks]
    if own.epsilon:
        means = [min(n * m, own.epsilon * (n + m)) for n, m in shapes]
    else:
        means = erk_connections(shapes, 1 - own.sparsity)
    off = 0.0
    for pattern, mean in zip(masks, means, strict=True):
        pattern, mean = pattern[:: own.block, :: own.block], mean / own.block**2
        deviation = math.sqrt(mean * (1 - mean / pattern.numel()))
        off = max(off, abs(int(pattern.sum()) - mean) / max(deviation, 1e-3))  # a dense layer has no deviation
    return off


def _stays(trace: Trace, path: str, zeta: float, block: int) -> Tensor:
    """Returns the connections but the zeta smallest positive and the zeta largest negative ones, by sorting; where
    several tie for the last to go, those that have a weight after the step stay, if they are as many as should. Of
    blocks the magnitudes are summed."""
    name, connections = f"{path}.weight", mask(trace.before, path)[::block, ::block]
    weight, after = trace.update.after.parameters[name], trace.after.parameters[name]
    if block > 1:
        weight, after = pooled(weight.abs(), block), pooled(after.abs(), block)
    stays = torch.zeros_like(connections)
    for size in (weight, -weight):
        alive = connections & (size > 0)
        values, count = size[alive].sort().values, int(zeta * int(alive.sum()))
        largest_dropped = values[count - 1] if count else -math.inf
        stays |= alive & (size > largest_dropped)
        tied = alive & (size == largest_dropped)
        tied_and_there = tied & (after != 0)
        if int(tied_and_there.sum()) == len(values) - count - int((values > largest_dropped).sum()):
            stays |= tied_and_there
    return stays.repeat_interleave(block, 0).repeat_interleave(block, 1)


def _gone(trace: Trace, path: str, stays: Tensor) -> int:
    """Counts the connections that should have stayed and did not, and others that kept their weight."""
    before, after = trace.update.after.parameters[f"{path}.weight"], trace.after.parameters[f"{path}.weight"]
    lost = stays & (~mask(trace.after, path) | (after != before))
    return int((lost | (~stays & (after != 0))).sum())


def _ranks(grown: Tensor, free: Tensor) -> Tensor:
    """Computes ranks in [0, 1] of the grown connections' places among those of all that could grow."""
    return torch.linspace(0, 1, int(free.sum()), dtype=torch.float64)[grown[free]]


def _off_uniform(ranks: Sequence[Tensor]) -> float:
    """Computes the standard deviations between the mean of ranks, which are uniform in [0, 1] by chance, and 1/2."""
    every = torch.cat([*ranks, torch.tensor([0.5], dtype=torch.float64)])
    return abs(every.mean().item() - 0.5) * math.sqrt(12 * len(every))
