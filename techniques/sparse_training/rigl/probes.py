"""Checks what the steps of a short run show of RigL: algorithm 1 read off masks, weights, gradients and optimizer
state."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    misplaced,
    moved,
    off_zero,
    paths_of,
    pooled,
    staying,
)
from techniques.sparse_training.rigl.technique import RigL


def records(run: Run, own: RigL) -> bool:
    """Selects all steps: a topology update, what follows it, and that none comes after the end."""
    return bool(own.sparsity)


@judged(
    "sparsity",
    "Training starts and ends with the same sparsity: 80 % of the weights of all layers",
    "Section 3, sparsity distribution",
    equals=0.8,
    tolerance=0.001,
    note="sparsity 0.8; rounding to whole weights in each layer",
)
@judged(
    "off_erk",
    "A layer's density is proportional to (n + m) / (n m), and layers that would need more than all weights are dense",
    "Section 3, sparsity distribution",
    id="erdos_renyi",
    at_most=0.501,  # a layer has a whole number of connections
)
@judged(
    "connections_changed",
    "The number of connections of each layer stays fixed throughout training",
    "Section 3, algorithm 1",
    id="constant_connections",
)
@judged(
    "off_schedule",
    "Every dT steps until T_end the topology is updated in place of the weights, and never after T_end",
    "Section 3, algorithm 1",
    id="schedule",
)
@judged(
    "misplaced",
    "The k smallest weights are dropped and the k largest dense gradients among all that are not kept are grown, with "
    "k = alpha / 2 (1 + cos(pi t / T_end)) of the layer's connections",
    "Section 3, equation 1, algorithm 1",
    id="topology",
)
@judged(
    "grown_off_zero",
    "New connections start at zero, with fresh optimizer state",
    "Section 3, grow; slots reset in the authors' code",
    id="grown_at_zero",
)
@judged(
    "moved",
    "An update of the topology changes no weight that stays, and no optimizer state",
    "Section 3, algorithm 1",
    id="nothing_else_moves",
)
@judged(
    "dead",
    "Weights outside the topology are zero after every step, and get neither gradient nor momentum",
    "Section 3",
    id="inactive_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient",
    "Section 3",
    id="inactive_weights_stay_zero",
)
def probes(recording: Recording, own: RigL) -> Mapping[str, float]:
    """Connections, or blocks of them, and numbers that are off are counted; ``off_erk`` is the most of a layer.
    ``dead`` looks at a forward pass and behind the step. For a claim, ``flops_over_formula`` is of the steps from the
    first topology update to the last."""
    if not own.sparsity:
        return {}
    run, traces = recording.run, recording.traces
    paths = paths_of(run)
    end = own.end_fraction * run.recipe.steps
    interval = own.interval or max(2, min(100, round(end / 25)))
    first = [mask(traces[0].before, path) for path in paths]
    counts = dict.fromkeys(("off_schedule", "misplaced", "grown_off_zero", "moved", "dead"), 0)
    for trace in traces:
        planned = trace.step < end and trace.step % interval == 0
        counts["off_schedule"] += bool(trace.updates) == planned or (
            changed(trace.before, trace.after, paths) and not planned
        )
        if planned:
            share = own.alpha / 2 * (1 + math.cos(math.pi * trace.step / end))
            counts["misplaced"] += sum(_misplaced(trace, path, share, own.block) for path in paths)
            counts["grown_off_zero"] += sum(_grown_off_zero(trace, path) for path in paths)
            counts["moved"] += moved(trace.before, trace.after, staying(trace.before, trace.after, paths))
        counts["dead"] += sum(dead(trace, path) for path in paths)
    density = sum(int(tensor.sum()) for tensor in first) / sum(tensor.numel() for tensor in first)
    wanted = _connections([tuple(tensor.shape) for tensor in first], own)
    return {
        **counts,
        "connections_changed": count_change(traces, paths),
        "sparsity": 1 - density,
        "off_erk": max(abs(int(tensor.sum()) - want) for tensor, want in zip(first, wanted, strict=True))
        / own.block**2,
        "dead_moved": dead_moved(recording, own, paths),
        **_flops(traces, density, interval),
    }


def relative_flops(sparse: float, between: int) -> float:
    """Computes training FLOPs over dense ones, section 3: (3 f_S dT + 2 f_S + f_D) / ((dT + 1) 3 f_D), f_S = ``sparse``
    f_D, for dT = ``between`` updates of the weights to each of the topology."""
    return (3 * sparse * between + 2 * sparse + 1) / ((between + 1) * 3)


def _connections(shapes: list[tuple[int, ...]], own: RigL) -> list[float]:
    part = 1 - own.sparsity
    return erk_connections(shapes, part) if own.distribution == "erk" else [part * math.prod(shape) for shape in shapes]


def _misplaced(trace: Trace, path: str, share: float, block: int) -> int:
    old, new = (mask(moment, path) for moment in (trace.before, trace.after))
    gradient = trace.of("backward")[0].gradients.get(f"{path}.weight")
    weight = trace.before.parameters[f"{path}.weight"]
    broken = int((pooled(old.int(), block) % block**2 > 0).sum())  # blocks that are neither kept nor left out
    old, new, weight = old[::block, ::block], new[::block, ::block], pooled(weight.abs(), block)
    gradient = None if gradient is None else pooled(gradient.abs(), block)
    return broken + misplaced(old, new, weight, gradient, int(share * int(old.sum())))


def _grown_off_zero(trace: Trace, path: str) -> int:
    return off_zero(trace.after, path, mask(trace.after, path) & ~mask(trace.before, path))


def _flops(traces: list[Trace], density: float, interval: int) -> dict[str, float]:
    steps = [number for number, trace in enumerate(traces) if not trace.updates]
    if len(steps) < 2:
        return {}
    whole = traces[steps[0] : steps[-1]]  # each interval begins with an update, and the last may not end
    spent = sum(2 * density + (density if trace.updates else 1) for trace in whole)
    return {"flops_over_formula": spent / (3 * len(whole)) / relative_flops(density, interval - 1)}
