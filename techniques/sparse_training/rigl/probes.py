"""What the steps of a short run show of RigL: algorithm 1 read off masks, weights, gradients and optimizer state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.contract.trace import Trace
from techniques.sparse_training.rigl.technique import RigL
from techniques.sparse_training.rigl.topology import connections, dead, grown_off_zero, mask, misplaced, moved


def records(run: Run, own: RigL) -> bool:
    """All steps: a topology update, what follows it, and that none comes after the end."""
    return bool(own.sparsity)


def probes(recording: Recording, own: RigL) -> Mapping[str, float]:
    """``sparsity``: share of the matrices' entries without a connection; ``off_erk``: how many connections a layer is
    away from its density at most; ``connections_changed``: by how many its number changed; ``off_schedule``: steps that
    moved connections where the schedule says weights, or the other way round; ``misplaced``: connections that algorithm
    1 does not choose; ``grown_off_zero``: grown ones whose weight or optimizer state is not 0; ``moved``: further
    numbers, of parameters or state, that an update of the topology changed; ``dead``: numbers not 0 outside the
    topology, of weights (in a forward pass, or after the step), gradients or state; ``dead_moved``: of weights, when an
    optimizer moves all of them; ``flops_over_formula``: FLOPs of the steps from the first topology update to the last,
    over the formula's.
    """
    if not own.sparsity:
        return {}
    run, traces = recording.run, recording.traces
    paths = [part.path for part in run.anatomy.linears if part.module.weight.requires_grad]
    end = own.end_fraction * run.recipe.steps
    interval = own.interval or max(2, min(100, round(end / 25)))
    first = [mask(traces[0].before, path) for path in paths]
    counts = dict.fromkeys(("connections_changed", "off_schedule", "misplaced", "grown_off_zero", "moved", "dead"), 0)
    for trace in traces:
        planned = trace.step < end and trace.step % interval == 0
        changed = any(not torch.equal(mask(trace.before, path), mask(trace.after, path)) for path in paths)
        counts["off_schedule"] += bool(trace.updates) == planned or (changed and not planned)
        if planned:
            share = own.alpha / 2 * (1 + math.cos(math.pi * trace.step / end))
            counts["misplaced"] += sum(misplaced(trace, path, share) for path in paths)
            counts["grown_off_zero"] += sum(grown_off_zero(trace, path) for path in paths)
            counts["moved"] += moved(trace, paths)
        counts["dead"] += sum(dead(trace, path) for path in paths)
        ones = [int(mask(trace.after, path).sum()) for path in paths]
        differences = [abs(now - int(before.sum())) for now, before in zip(ones, first, strict=True)]
        counts["connections_changed"] = max(counts["connections_changed"], *differences)
    density = sum(int(each.sum()) for each in first) / sum(each.numel() for each in first)
    wanted = connections([tuple(each.shape) for each in first], own)
    return {
        **counts,
        "sparsity": 1 - density,
        "off_erk": max(abs(int(each.sum()) - want) for each, want in zip(first, wanted, strict=True)),
        "dead_moved": _dead_moved(recording, own, paths),
        **_flops(traces, density, interval),
    }


def relative_flops(sparse: float, between: int) -> float:
    """Training FLOPs over dense ones, section 3: (3 f_S dT + 2 f_S + f_D) / ((dT + 1) 3 f_D), f_S = ``sparse`` f_D, for
    dT = ``between`` updates of the weights to each of the topology."""
    return (3 * sparse * between + 2 * sparse + 1) / ((between + 1) * 3)


def _dead_moved(recording: Recording, own: RigL, paths: list[str]) -> int:
    """What :meth:`after_step` leaves outside the topology when all weights are 1."""
    trace = recording.trace
    ones = {name: torch.ones_like(trace.after.parameters[name]) for name in (f"{path}.weight" for path in paths)}
    with recording.at(ones):
        own.after_step(recording.run)
        now = dict(recording.run.model.named_parameters())
        return sum(int(now[f"{path}.weight"][~mask(trace.after, path)].count_nonzero()) for path in paths)


def _flops(traces: list[Trace], density: float, interval: int) -> dict[str, float]:
    steps = [number for number, trace in enumerate(traces) if not trace.updates]
    if len(steps) < 2:
        return {}
    whole = traces[steps[0] : steps[-1]]  # each interval begins with an update, and the last may not end
    spent = sum(2 * density + (density if trace.updates else 1) for trace in whole)
    return {"flops_over_formula": spent / (3 * len(whole)) / relative_flops(density, interval - 1)}
