"""What the steps of a short run show of RigL: algorithm 1 read off masks, weights, gradients and optimizer state."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.loop.run import Run
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
    """All steps: a topology update, what follows it, and that none comes after the end."""
    return bool(own.sparsity)


def probes(recording: Recording, own: RigL) -> Mapping[str, float]:
    """``sparsity``: share of the matrices' entries without a connection; ``off_erk``: how many connections, or
    blocks, a layer is away from its density at most; ``connections_changed``: by how many its number changed;
    ``off_schedule``: steps that moved connections where the schedule says weights, or the other way round;
    ``misplaced``: connections that algorithm 1 does not choose, or blocks; ``grown_off_zero``: grown ones whose
    weight or optimizer state is not 0; ``moved``: further numbers, of parameters or state, that an update of the
    topology changed; ``dead``: numbers not 0 outside the topology, of weights (in a forward pass, or after the
    step), gradients or state; ``dead_moved``: of weights, when an optimizer moves all of them;
    ``flops_over_formula``: FLOPs of the steps from the first topology update to the last, over the formula's.
    """
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
    """Training FLOPs over dense ones, section 3: (3 f_S dT + 2 f_S + f_D) / ((dT + 1) 3 f_D), f_S = ``sparse`` f_D, for
    dT = ``between`` updates of the weights to each of the topology."""
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
