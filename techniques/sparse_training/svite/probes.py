"""What the steps of a short run show of SViTE: its algorithm read off masks, weights, gradients and optimizer state."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.contract.trace import Trace
from techniques.shared.connections import (
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
    sparse_flops,
    staying,
)
from techniques.sparse_training.svite.technique import SViTE


def records(run: Run, own: SViTE) -> bool:
    """All steps: an exploration, what follows it, and that none comes in between."""
    return not own.is_reference


def probes(recording: Recording, own: SViTE) -> Mapping[str, float]:
    """``sparsity``: share of the matrices' entries without a connection; ``off_erk``: how many connections a layer is
    away from its density at most; ``connections_changed``: by how many its number changed; ``off_schedule``: steps that
    moved connections where none should, or the other way round, or did not update the weights; ``misplaced``:
    connections that the rule does not choose; ``grown_off_zero``: grown ones whose weight or optimizer state is not 0;
    ``moved``: further numbers that an exploration changed; ``dead``, ``dead_moved``: numbers outside the topology that
    are not 0; ``sparse_flops``: of the matrices' products, over dense ones."""
    if own.is_reference:
        return {}
    run, traces = recording.run, recording.traces
    paths, steps = paths_of(run), run.recipe.steps
    interval = own.interval or max(2, steps // 100)
    first = [mask(traces[0].before, path) for path in paths]
    counts = dict.fromkeys(("off_schedule", "misplaced", "grown_off_zero", "moved", "dead"), 0)
    for trace in traces:
        end = trace.step + 1
        explores = end % interval == 0 and end < steps
        counts["off_schedule"] += changed(trace.before, trace.after, paths) != explores or len(trace.updates) != 1
        counts["dead"] += sum(dead(trace, path) for path in paths)
        if explores:
            share = own.last_death + (own.death - own.last_death) * math.cos(math.pi * end / steps / 2) ** 2
            counts["misplaced"] += sum(_misplaced(trace, path, share) for path in paths)
            counts["grown_off_zero"] += sum(_grown_off_zero(trace, path) for path in paths)
            updated = trace.update.after
            counts["moved"] += moved(updated, trace.after, staying(updated, trace.after, paths))
    wanted = erk_connections([tuple(each.shape) for each in first], 1 - own.sparsity)
    return {
        **counts,
        "sparsity": 1 - sum(int(each.sum()) for each in first) / sum(each.numel() for each in first),
        "off_erk": max(abs(int(each.sum()) - want) for each, want in zip(first, wanted, strict=True)),
        "connections_changed": count_change(traces, paths),
        "dead_moved": dead_moved(recording, own, paths),
        "sparse_flops": sparse_flops(recording, paths),
    }


def _misplaced(trace: Trace, path: str, share: float) -> int:
    """By the weights after the step's update, and the gradient before it."""
    old, name = mask(trace.before, path), f"{path}.weight"
    gradient, weight = trace.of("backward")[0].gradients.get(name), trace.update.after.parameters[name]
    count = 0 if old.all() else math.ceil(share * int(old.sum()) - 1e-9)  # roundings of the cosine
    return misplaced(old, mask(trace.after, path), weight, gradient, count)


def _grown_off_zero(trace: Trace, path: str) -> int:
    return off_zero(trace.after, path, mask(trace.after, path) & ~mask(trace.before, path))
