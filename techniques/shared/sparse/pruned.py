"""Checks what a short run shows of a network that was pruned once, at its start: which weights stayed, and what
choosing cost.

For the probes of ``snip``, ``grasp`` and ``lth_imp``. The unpruned network is made a second time: it is a function of
the run's seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.reading.recording import Recording
from techniques.shared.sparse.connections import changed, dead, dead_moved, mask, paths_of, sparse_flops
from techniques.shared.sparse.masks import Masked
from techniques.shared.sparse.saliency import PrunedAtStart


def records(run: Run, own: Masked) -> bool:
    """Selects all steps: the first shows what was kept, the others that nothing changes."""
    return not own.is_reference


def invariants(recording: Recording, own: Masked, initial: Mapping[str, Tensor]) -> dict[str, float]:
    """Computes ``topology_changed``: steps after which a connection came or went; ``off_initial``: numbers of the run's
    first parameters that are not those of ``initial``, by name, where there is a connection, and not 0 elsewhere;
    ``dead``, ``dead_moved``: numbers outside the topology that are not 0; ``sparse_flops``: of the matrices' products,
    over dense ones."""
    paths, traces = paths_of(recording.run), recording.traces
    off = 0
    for name, value in traces[0].before.parameters.items():
        path = name.removesuffix(".weight")
        expected = initial[name] * mask(traces[0].before, path) if path in paths else initial[name]
        off += int((value != expected).sum())
    return {
        "topology_changed": sum(changed(trace.before, trace.after, paths) for trace in traces),
        "off_initial": off,
        "dead": sum(dead(trace, path) for trace in traces for path in paths),
        "dead_moved": dead_moved(recording, own, paths),
        "sparse_flops": sparse_flops(recording, paths),
    }


def initial_parameters(run: Run) -> dict[str, Tensor]:
    """Returns the parameters of the run's model before any technique changed it, by name."""
    with unchanged_randomness(run.device):
        return {name: parameter.detach() for name, parameter in run.plain_model().named_parameters()}


def masks_of(recording: Recording) -> dict[str, Tensor]:
    """Returns the run's masks before its first step, by layer."""
    return {path: mask(recording.traces[0].before, path) for path in paths_of(recording.run)}


def wrongly_kept(masks: Mapping[str, Tensor], importance: Mapping[str, Tensor], slack: Mapping[str, Tensor]) -> int:
    """Counts connections with a lower importance than as many highest ones of all layers have, and others with a higher
    one, by more than ``slack``, what rounding may do to it. Keys are layers, shapes are equal."""
    count = sum(int(value.sum()) for value in masks.values())
    every = torch.cat([importance[path].flatten() for path in masks])
    threshold = every.sort(descending=True).values[count - 1]
    return sum(
        int((pattern & (importance[path] + slack[path] < threshold)).sum())
        + int((~pattern & (importance[path] - slack[path] > threshold)).sum())
        for path, pattern in masks.items()
    )


def off_count(masks: Mapping[str, Tensor], connections: int) -> int:
    """Counts by how many all layers' connections are more or fewer."""
    return abs(sum(int(value.sum()) for value in masks.values()) - connections)


def double_model(run: Run) -> nn.Module:
    """Returns the unpruned model in float64 and evaluation mode."""
    with unchanged_randomness(run.device):
        return run.plain_model().double().eval()


def doubled(batch: Batch) -> Batch:
    """Returns the batch with its real numbers in float64."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}


def choosing_cost(recording: Recording, own: PrunedAtStart) -> float:
    """Computes FLOPs of choosing the connections once more, over those of a plain step's passes on the run's batch
    size."""
    run, trace = recording.run, recording.trace
    state = run.generator.get_state()
    with unchanged_randomness(run.device):
        model = run.plain_model()
        with FlopCounter() as step:
            run.baseline.losses(run.baseline.forward(model, trace.batch), trace.batch).mean().backward()
        model = run.plain_model()
        with FlopCounter() as choosing:
            replace(own).model(model, run)
    run.generator.set_state(state)
    return choosing.total / step.total
