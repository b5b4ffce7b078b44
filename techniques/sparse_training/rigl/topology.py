"""What algorithm 1 says of one recorded step of RigL, and of one layer's topology: for `probes`."""

from __future__ import annotations

import torch
from torch import Tensor

from suite.contract.trace import Moment, Trace
from techniques.sparse_training.rigl.technique import MASK, RigL


def mask(moment: Moment, path: str) -> Tensor:
    """Where a layer's weights are connections, bool."""
    weight = moment.parameters[f"{path}.weight"]
    return moment.buffers.get(f"{path}.{MASK}", torch.ones_like(weight, dtype=torch.bool))


def slots(moment: Moment, name: str) -> dict[str, Tensor]:
    """The parameter, and the optimizer's tensors of its shape."""
    weight = moment.parameters[name]
    state = moment.state.get(name, {})
    return {"": weight, **{key: each for key, each in state.items() if getattr(each, "shape", None) == weight.shape}}


def connections(shapes: list[tuple[int, ...]], own: RigL) -> list[float]:
    """Connections of each [n, m] matrix: e (n + m), at most all n m, with the e of the whole sparsity by bisection."""
    sizes = [n * m for n, m in shapes]
    if own.distribution == "uniform":
        return [(1 - own.sparsity) * size for size in sizes]
    low, high = 0.0, float(max(sizes))
    for _ in range(100):
        factor = (low + high) / 2
        ones = [min(float(size), factor * (n + m)) for size, (n, m) in zip(sizes, shapes, strict=True)]
        low, high = (factor, high) if sum(ones) < (1 - own.sparsity) * sum(sizes) else (low, factor)
    return ones


def misplaced(trace: Trace, path: str, share: float) -> int:
    """Kept connections that are gone, and grown ones with a smaller gradient than one that is not there; where several
    weights tie for the last to be dropped, either is right."""
    old, new = mask(trace.before, path), mask(trace.after, path)
    count = int(share * int(old.sum()))
    gradient = trace.of("backward")[0].gradients.get(f"{path}.weight")
    if not count or new.all() or gradient is None:
        return int((old != new).sum())
    gradient, weight = gradient.abs(), trace.before.parameters[f"{path}.weight"].abs()
    largest_dropped = weight[old].sort().values[count - 1]
    kept, tied = old & (weight > largest_dropped), old & (weight == largest_dropped)
    chosen = new & ~kept & ~(tied & (tied.sum() > 1))
    return int((kept & ~new).sum() + (gradient[chosen] < gradient[~new].max()).sum())


def grown_off_zero(trace: Trace, path: str) -> int:
    """Numbers, of grown connections' weights and optimizer state, that are not 0."""
    grown = mask(trace.after, path) & ~mask(trace.before, path)
    return sum(int(each[grown].count_nonzero()) for each in slots(trace.after, f"{path}.weight").values())


def moved(trace: Trace, paths: list[str]) -> int:
    """Numbers, of parameters and state, that the step changed where no connection came or went."""
    total = 0
    for name in trace.before.parameters:
        path = name.removesuffix(".weight")
        stay = mask(trace.before, path) & mask(trace.after, path) if path in paths else None
        after = slots(trace.after, name)
        for key, before in slots(trace.before, name).items():
            changed = before != after[key]
            total += int((changed if stay is None else changed[stay]).sum())
    return total


def dead(trace: Trace, path: str) -> int:
    """Numbers outside the topology that are not 0: weights in a forward pass or after the step, gradients, state."""
    name, outside = f"{path}.weight", ~mask(trace.before, path)
    values = [each[~mask(trace.after, path)] for each in slots(trace.after, name).values()]
    values += [each.parameters[name][outside] for each in trace.of("forward")]
    values += [each.before.gradients[name][outside] for each in trace.updates if name in each.before.gradients]
    return sum(int(each.count_nonzero()) for each in values)
