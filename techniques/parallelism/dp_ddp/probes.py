"""Checks what recorded steps of every rank show of data parallelism: whose examples, which mean, which update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.parallelism.dp_ddp.technique import DataParallel
from techniques.shared.plain import apart
from techniques.shared.ranks import mean_gradients, plainly, unequal, update_roundings, whole_batch_roundings

OF_ITS_BASELINES = True  # without dropout or batch norm, so that a batch is the sum of its examples
STEPS = 3  # with as many the optimizer's state counts, too


def records(run: Run, own: DataParallel) -> bool:
    """Selects the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "mean_roundings",
    "What the optimizer gets is the mean over ranks of the gradients that each made of its own examples",
    "Section 3.1: gradients are averaged",
    id="mean_of_the_ranks",
    at_most=64.0,  # the sum, and a norm of all gradients
    note="but for the factor of clipping, whose norm is summed in float32",
)
@judged(
    "whole_batch_roundings",
    "The mean is the gradient of local training on the whole batch",
    "Section 3.1: mathematically equivalent",
    id="whole_batch_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
    note="no dropout; ranks with equally many examples and predictions",
)
@judged(
    "update_roundings",
    "Each step is one process's with that mean",
    "Section 3.1",
    id="same_update",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged(
    "unequal",
    "Replicas stay equal to the bit",
    "Section 3.1: all start from the same model and apply the same gradients",
    id="equal_replicas",
)
@judged(
    "needless_search",
    "A model that uses all its parameters is not searched for unused ones in every pass",
    "Section 3.2.3: the search costs a walk through the graph and one more reduction",
    id="no_needless_search",
)
def probes(recording: Recording, own: DataParallel) -> Mapping[str, float]:
    """``unequal`` is of the run's end. For a claim, ``batch`` is the different examples that the ranks have in a step,
    over the reference's batch."""
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
