"""Checks what recorded steps show of masked weights: which are connections, which moved, and whether the others are
dead.

For the probes of the techniques of sparse training (``rigl``, ``set``, ``snip``, ``grasp``, ``lth_imp``, ``svite``).
A layer goes by its path, its mask and weight by their tensors at a recorded moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace
from techniques.shared.sparse.masks import MASK, Masked


def paths_of(run: Run) -> list[str]:
    """Lists the trained attention and MLP layers of all blocks."""
    layers: list[tuple[str, Any]] = [*run.anatomy.linears]
    return [path for path, layer in layers if layer.weight.requires_grad]


def mask(moment: Moment, path: str) -> Tensor:
    """Tells where a layer's weights are connections, bool."""
    weight = moment.parameters[f"{path}.weight"]
    return moment.buffers.get(f"{path}.{MASK}", torch.ones_like(weight, dtype=torch.bool))


def slots(moment: Moment, name: str) -> dict[str, Tensor]:
    """Returns the parameter, and the optimizer's tensors of its shape."""
    weight = moment.parameters[name]
    state = moment.state.get(name, {})
    return {"": weight, **{key: value for key, value in state.items() if getattr(value, "shape", None) == weight.shape}}


def erk_connections(shapes: Sequence[tuple[int, ...]], density: float) -> list[float]:
    """Computes the connections of each [n, m] matrix: e (n + m), at most all n m, with the e that keeps the share
    ``density`` of all weights, by bisection."""
    sizes = [n * m for n, m in shapes]
    low, high = 0.0, float(max(sizes))
    for _ in range(100):
        factor = (low + high) / 2
        ones = [min(float(size), factor * (n + m)) for size, (n, m) in zip(sizes, shapes, strict=True)]
        low, high = (factor, high) if sum(ones) < density * sum(sizes) else (low, factor)
    return ones


def pooled(values: Tensor, block: int) -> Tensor:
    """Sums of [n, m] over blocks of ``block`` x ``block``; of blocks of one, the values themselves."""
    return values.unfold(0, block, block).unfold(1, block, block).sum((-1, -2)) if block > 1 else values


def changed(before: Moment, after: Moment, paths: Sequence[str]) -> bool:
    """Tells whether a connection came or went."""
    return any(not torch.equal(mask(before, path), mask(after, path)) for path in paths)


def count_change(traces: Sequence[Trace], paths: Sequence[str]) -> int:
    """Computes by how much the number of a layer's connections after a step differs from that before the first step, at
    most."""
    return max(
        abs(int(mask(trace.after, path).sum()) - int(mask(traces[0].before, path).sum()))
        for trace in traces
        for path in paths
    )


def misplaced(old: Tensor, new: Tensor, weight: Tensor, gradient: Tensor | None, count: int) -> int:
    """Counts what is misplaced after ``count`` drops by size and as many growths by gradient: kept connections that are
    gone, and grown ones with a smaller gradient than one that is not there; where several weights tie for the last to
    be dropped, either is right."""
    if not count or new.all() or gradient is None:
        return int((old != new).sum())
    gradient, weight = gradient.abs(), weight.abs()
    largest_dropped = weight[old].sort().values[count - 1]
    survivors, tied = old & (weight > largest_dropped), old & (weight == largest_dropped)
    chosen = new & ~survivors & ~(tied & (tied.sum() > 1))
    return int((survivors & ~new).sum() + (gradient[chosen] < gradient[~new].max()).sum())


def off_zero(after: Moment, path: str, grown: Tensor) -> int:
    """Counts the numbers, of the weights and optimizer state of ``grown`` connections, that are not 0."""
    return sum(int(slot[grown].count_nonzero()) for slot in slots(after, f"{path}.weight").values())


def staying(before: Moment, after: Moment, paths: Sequence[str]) -> dict[str, Tensor]:
    """Returns each layer's connections before that are there after."""
    return {path: mask(before, path) & mask(after, path) for path in paths}


def moved(before: Moment, after: Moment, stays: Mapping[str, Tensor]) -> int:
    """Counts the numbers, of parameters and state, that changed: of the layers in ``stays`` those of its connections,
    of all other parameters all."""
    total = 0
    for name in before.parameters:
        stay = stays.get(name.removesuffix(".weight"))
        later = slots(after, name)
        for key, earlier in slots(before, name).items():
            differs = earlier != later[key]
            total += int((differs if stay is None else differs[stay]).sum())
    return total


def dead(trace: Trace, path: str) -> int:
    """Counts the numbers outside the topology that are not 0: weights in a forward pass or after the step, gradients,
    state."""
    name, outside = f"{path}.weight", ~mask(trace.before, path)
    values = [slot[~mask(trace.after, path)] for slot in slots(trace.after, name).values()]
    values += [pass_.parameters[name][outside] for pass_ in trace.of("forward")]
    values += [update.before.gradients[name][outside] for update in trace.updates if name in update.before.gradients]
    return sum(int(value.count_nonzero()) for value in values)


def dead_moved(recording: Recording, own: Masked, paths: Sequence[str]) -> int:
    """Counts the weights outside the topology that the technique's after-step method leaves when an optimizer moved all
    to 1."""
    trace = recording.trace
    ones = {name: torch.ones_like(trace.after.parameters[name]) for name in (f"{path}.weight" for path in paths)}
    with recording.at(ones):
        own.after_step(recording.run)
        now = dict(recording.run.model.named_parameters())
        return sum(int(now[f"{path}.weight"][~mask(trace.after, path)].count_nonzero()) for path in paths)


def sparse_flops(recording: Recording, paths: Sequence[str]) -> float:
    """Computes FLOPs of the layers' products with the weights that are not 0, over those with all weights: for a
    recorded batch, with as many rows as came into each layer. A training step's two products backward have the same
    share."""
    rows = dict.fromkeys(paths, 0)

    def counted(path: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            rows[path] += output.shape[:-1].numel()

        return recording.run.model.get_submodule(path).register_forward_hook(hook)

    weights = {path: recording.trace.after.parameters[f"{path}.weight"] for path in paths}
    handles = [counted(path) for path in paths]
    recording.outputs_at(recording.trace.after.parameters)
    for handle in handles:
        handle.remove()
    spent = sum(rows[path] * int(weight.count_nonzero()) for path, weight in weights.items())
    return spent / sum(rows[path] * weight.numel() for path, weight in weights.items())
