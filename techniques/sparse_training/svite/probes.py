"""Checks what the steps of a short run show of SViTE: its algorithm read off masks, weights, gradients and optimizer
state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.model.anatomy import out_features
from suite.model.pruning import Units
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace
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
    sparse_flops,
    staying,
)
from techniques.sparse_training.svite.structured import Structure, turned
from techniques.sparse_training.svite.technique import SViTE


def records(run: Run, own: SViTE) -> bool:
    """Selects all steps: an exploration, what follows it, and that none comes in between."""
    return not own.is_reference


@judged(
    "sparsity",
    "Training starts and ends with the same sparsity: 50 % of the weights of all layers.",
    "Section 3.2, algorithm 1",
    equals=0.5,
    tolerance=0.001,
    note="sparsity 0.5; rounding to whole weights in each layer",
)
@judged(
    "off_erk",
    "A layer's density is proportional to (n + m) / (n m), and layers that would need more than all weights are dense.",
    "Section 3.2; fixed_ERK of the authors' code",
    id="erdos_renyi",
    at_most=0.501,  # a layer has a whole number of connections
)
@judged(
    "connections_changed",
    "The number of connections of each layer stays fixed throughout training.",
    "Section 3.2, algorithm 1",
    id="constant_connections",
)
@judged(
    "off_schedule",
    "Connections move after every dT-th update of the weights, and the weights are updated in every step.",
    "Section 3.2, algorithm 1; dst_utils/core.py of the authors' code",
    id="schedule",
)
@judged(
    "misplaced",
    "The share r(t) of the connections, rounded up, goes at the smallest weights, and as many grow at the largest "
    "dense gradients; r falls from 0.5 to 0.005 by half a cosine.",
    "Section 3.2, algorithm 1; CosineDecay and magnitude_death of the authors' code",
    id="topology",
)
@judged(
    "grown_off_zero",
    "New connections start at zero, with fresh optimizer state.",
    "apply_mask of the authors' code",
    id="grown_at_zero",
)
@judged(
    "moved",
    "An exploration changes no weight that stays, and none of its optimizer state.",
    "Section 3.2, algorithm 1",
    id="nothing_else_moves",
)
@judged(
    "dead",
    "Weights outside the topology are zero after every step, and get neither gradient nor momentum.",
    "Section 3.2",
    id="inactive_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient.",
    "Section 3.2",
    id="inactive_weights_stay_zero",
)
@judged(
    "evaluated_apart",
    "Training ends with one sparse network as the final output; heads and neurons that are off are out of it.",
    "Abstract; the structured form",
    id="one_sparse_network",
    at_most=1e-5,  # roundings of smaller sums
    note="its loss against the masked model's; of structured=true, as without it there is nothing to take out",
)
def probes(recording: Recording, own: SViTE) -> Mapping[str, float]:
    """Connections and numbers that are off are counted. Where heads and neurons move, ``sparsity`` is the share of
    their weights that is off, ``misplaced`` is of neurons, and ``evaluated_apart`` is relative: infinite if a unit that
    is off is still there. For a claim, ``sparse_flops`` is of the matrices' products, over dense ones."""
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
        moves = changed(trace.before, trace.after, paths)
        same = own.structure is not None and explores and not moves  # units that went came at once
        counts["off_schedule"] += (moves != explores and not same) or len(trace.updates) != 1
        counts["dead"] += sum(dead(trace, path) for path in paths)
        if explores:
            share = own.last_death + (own.death - own.last_death) * math.cos(math.pi * end / steps / 2) ** 2
            if own.structure:
                counts["misplaced"] += _misplaced_neurons(trace, own.structure, run, share)
            else:
                counts["misplaced"] += sum(_misplaced(trace, path, share) for path in paths)
            counts["grown_off_zero"] += sum(_grown_off_zero(trace, path) for path in paths)
            updated = trace.update.after
            stays = staying(updated, trace.after, paths)
            if own.structure:
                stays |= _biases_of_heads(own.structure, run, stays)
            counts["moved"] += moved(updated, trace.after, stays)
    if own.structure:
        return {
            **counts,
            "sparsity": 1 - own.structure.share(run.model),
            "connections_changed": count_change(traces, paths),
            "dead_moved": dead_moved(recording, own, paths),
            "evaluated_apart": _evaluated_apart(recording, own.structure),
        }
    wanted = erk_connections([tuple(tensor.shape) for tensor in first], 1 - own.sparsity)
    return {
        **counts,
        "sparsity": 1 - sum(int(tensor.sum()) for tensor in first) / sum(tensor.numel() for tensor in first),
        "off_erk": max(abs(int(tensor.sum()) - want) for tensor, want in zip(first, wanted, strict=True)),
        "connections_changed": count_change(traces, paths),
        "dead_moved": dead_moved(recording, own, paths),
        "sparse_flops": sparse_flops(recording, paths),
    }


def _misplaced(trace: Trace, path: str, share: float) -> int:
    """Counts misplaced connections by the weights after the step's update, and the gradient before it."""
    old, name = mask(trace.before, path), f"{path}.weight"
    gradient, weight = trace.of("backward")[0].gradients.get(name), trace.update.after.parameters[name]
    count = 0 if old.all() else math.ceil(share * int(old.sum()) - 1e-9)  # roundings of the cosine
    return misplaced(old, mask(trace.after, path), weight, gradient, count)


def _grown_off_zero(trace: Trace, path: str) -> int:
    return off_zero(trace.after, path, mask(trace.after, path) & ~mask(trace.before, path))


def _misplaced_neurons(trace: Trace, structure: Structure, run: Run, share: float) -> int:
    """Counts misplaced neurons as :func:`_misplaced`, by norms of all weights of a neuron."""
    gradients, weights = trace.of("backward")[0].gradients, trace.update.after.parameters
    total = 0
    for units in structure.neurons:
        old, new = (_on(moment, units, run) for moment in (trace.before, trace.after))
        score, growth = (_norms(values, units, run) for values in (weights, gradients))
        total += misplaced(old, new, score, growth, math.ceil(share * int(old.sum()) - 1e-9))
    return total


def _on(moment: Moment, units: Units, run: Run) -> Tensor:
    """Tells which neurons have a connection in the layer behind them, bool [count]."""
    return turned(run.model.get_submodule(units.joint), mask(moment, units.joint)).any(0)


def _norms(values: Mapping[str, Tensor], units: Units, run: Run) -> Tensor:
    """Computes L1 over each neuron's rows and its column, [count]."""
    matrix = {
        path: turned(run.model.get_submodule(path), values[f"{path}.weight"]) for path in (units.joint, *units.rows)
    }
    columns = matrix[units.joint].abs().sum(0)
    return torch.stack(
        [
            column
            + torch.stack([matrix[path][list(rows[unit])].abs().sum() for path, rows in units.rows.items()]).sum()
            for unit, column in enumerate(columns)
        ]
    )


def _biases_of_heads(structure: Structure, run: Run, stays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the entries that stay, of the biases that come and go with heads."""
    paths = [path for units in structure.heads for path in units.rows]
    return {f"{path}.bias": turned(run.model.get_submodule(path), stays[path])[:, 0] for path in paths}


def _evaluated_apart(recording: Recording, structure: Structure) -> float:
    """Computes how far the evaluated model is off in evaluation mode, on the last step's batch."""
    run, batch = recording.run, recording.trace.batch
    evaluated = run.technique.evaluated(run.model, run)
    makers = [next(iter(units.rows)) for units in structure.units]
    if any(_features(evaluated, path) == _features(run.model, path) for path in makers):
        return math.inf
    losses, training = [], run.model.training
    for model in (run.model, evaluated):
        model.eval()
        with torch.no_grad(), unchanged_randomness(run.device):
            losses.append(float(run.baseline.losses(run.baseline.forward(model, batch), batch).double().mean()))
    run.model.train(training)
    return abs(losses[1] / losses[0] - 1)


def _features(model: nn.Module, path: str) -> int:
    return out_features(model.get_submodule(path))
