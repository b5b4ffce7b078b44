"""What recorded steps of every rank show of data parallelism: whose examples, which mean, which update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.parallelism.dp_ddp.technique import DataParallel
from techniques.shared.plain import apart
from techniques.shared.ranks import mean_gradients, plainly, unequal, update_roundings, whole_batch_roundings

OF_ITS_BASELINES = True  # without dropout or batch norm, so that a batch is the sum of its examples
STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: DataParallel) -> bool:
    """The first steps, so that the optimizer's state is known."""
    return run.step < STEPS


def probes(recording: Recording, own: DataParallel) -> Mapping[str, float]:
    """``ranks``; ``batch``: different examples that they have in a step, over the reference's batch; ``unequal``:
    values in which the replicas differ at the run's end; ``mean_roundings``: of the reduced gradients from the mean
    over ranks, but for the factor of clipping; ``whole_batch_roundings``: of that mean from one process's gradient on
    all examples; ``update_roundings``: of the steps from AdamW's with that mean; ``needless_search``: whether DDP
    looks for unused parameters of a model that has none."""
    run, trace = recording.run, recording.trace
    if run.world_size == 1:
        return {"ranks": 1}
    indices: list[list[int]] = [[]] * run.world_size
    dist.all_gather_object(indices, trace.indices.tolist(), group=run.group)
    reference = run.baseline.recipe_of(run.job.setting)
    return {
        "ranks": run.world_size,
        "batch": len({index for of_rank in indices for index in of_rank}) / reference.batch_size,
        "needless_search": bool(getattr(run.model, "find_unused_parameters", False) and _uses_all(run, trace)),
        "unequal": unequal(recording),
        "mean_roundings": _mean_roundings(recording, trace),
        "whole_batch_roundings": whole_batch_roundings(recording, trace),
        "update_roundings": update_roundings(recording, recording.traces),
    }


def _uses_all(run: Run, trace: Trace) -> bool:
    trained = {name for name, parameter in run.model.named_parameters() if parameter.requires_grad}
    return trained == trace.of("backward")[0].gradients.keys()


def _mean_roundings(recording: Recording, trace: Trace) -> float:
    mean, reduced = mean_gradients(recording, trace), plainly(trace.update.before.gradients)
    limit = recording.run.recipe.gradient_clip
    norm = torch.cat([value.flatten() for value in mean.values()]).norm().item()
    factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
    return apart(reduced, {name: factor * value for name, value in mean.items()})
