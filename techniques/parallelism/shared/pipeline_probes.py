"""Checks what recorded steps of every rank show of a pipeline: who holds what, in which order passes came, at which
weights.

The rank's own model sees one forward and one backward pass of a stage for each micro-batch, in the order in which they
were made, each with the weights that it used. That order, timed as if a forward pass took one unit and a backward pass
two, has a bubble; and whose weights are how late is read off the weights themselves, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.pipeline.simulated import simulated
from suite.pipeline.timetable import PipelineOp
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Pass, Trace, Values
from techniques.shared.plain import apart, filled, gradients_of, plain_model

STEPS = 4  # with as many, weights of two updates ago have been there


def first_steps(run: Run) -> bool:
    """Selects the steps that these probes read."""
    return run.step < STEPS


def synchronous(recording: Recording, micro_batches: int) -> dict[str, float]:
    """Computes what all pipelines with a flush show: :func:`holdings`, :func:`order`, ``gradient_roundings``."""
    return {
        **holdings(recording),
        **order(recording, recording.trace, micro_batches),
        "gradient_roundings": max(gradient_roundings(recording, trace) for trace in recording.traces),
    }


@judged(
    "gradient_roundings",
    "The gradients are those of one process whose stages have these weights, each clipped by its own norm",
    id="own_gradients",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    baselines=["vit", "mae"],
    sizes=["pico", "nano"],
    note="of models without a tied embedding, which has two versions in one pass",
)
def stashed(recording: Recording, micro_batches: int, beside: Sequence[Tensor]) -> dict[str, float]:
    """Computes what pipelines without a flush show that keep weights for their backward passes, this rank the tensors
    ``beside`` its own: :func:`holdings`, :func:`steady_order`, :func:`lateness` by the ``micro_batches`` of an update,
    ``gradient_roundings`` at the weights that were used; ``versions_first``, ``versions_last``: copies of their weights
    that the first and the last rank have."""
    versions = copies(recording, beside)
    used = recording.trace.of("backward")[0].parameters
    return {
        **holdings(recording),
        **steady_order(recording),
        **lateness(recording, micro_batches),
        "versions_first": versions[0],
        "versions_last": versions[-1],
        "gradient_roundings": gradient_roundings(recording, recording.trace, used),
    }


def of_all(recording: Recording, own: Any) -> list[Any]:
    """Gathers what each rank has, by rank."""
    every: list[Any] = [None] * recording.run.world_size
    dist.all_gather_object(every, own, group=recording.run.group)
    return every


def joined_values(recording: Recording, own: Values) -> dict[str, Tensor]:
    """Gathers the parameters of all ranks, float64; of one that several have, the first's."""
    values: dict[str, Tensor] = {}
    for of_rank in of_all(recording, {name: value.detach().double() for name, value in own.items()}):
        values = of_rank | values
    return values


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "held_by_none", "Every parameter is held by a rank", "The definition of the partition", id="each_layer_has_a_rank"
)
@judged(
    "not_evaluated",
    "The model that is evaluated is that of all stages, to the bit",
    "This entry's evaluation",
    id="gathered",
)
@judged(
    "held_by_several",
    "A layer is on one rank alone",
    id="layers_are_divided",
    baselines=["vit", "mae"],
    note="of models without a tied embedding, which is on the first rank and on the last",
)
@judged("unequal", "What two ranks hold stays equal to the bit", id="one_tied_embedding")
def holdings(recording: Recording) -> dict[str, float]:
    """Computes ``ranks``; ``held_by_none``: of the model's values; ``held_by_several``: as a share of them;
    ``unequal``: values in which two ranks that hold a parameter differ, as the run is now; ``not_evaluated``: values of
    the ranks' that the evaluated model has not."""
    run = recording.run
    every = of_all(recording, {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()})
    plain = dict(plain_model(recording).named_parameters())
    holders = {name: [own[name] for own in every if name in own] for name in plain}
    total = sum(value.numel() for value in plain.values())
    seen = dict(run.technique.evaluated(run.model, run).named_parameters())
    first = {name: own[0] for name, own in holders.items() if own}
    return {
        "not_evaluated": sum(
            int((value != seen[name]).sum()) if name in seen else value.numel() for name, value in first.items()
        ),
        "ranks": run.world_size,
        "held_by_none": sum(value.numel() for name, value in plain.items() if not holders[name]),
        "held_by_several": sum(value.numel() for name, value in plain.items() if len(holders[name]) > 1) / total,
        "unequal": sum(int((own != holder[0]).sum()) for holder in holders.values() for own in holder[1:]),
    }


def whole_batch(recording: Recording, trace: Trace) -> dict[str, Tensor]:
    """Returns what one process would have trained on in that step."""
    run = recording.run
    count = run.recipe.batch_size
    batch, _ = run.data.batch(mixed_seed(run.seed, 2), trace.step * count, count)
    return batch


def gradient_roundings(recording: Recording, trace: Trace, at: Values | None = None) -> float:
    """Computes how far a step's gradients are from one process's on the whole batch, at the step's first weights or
    ``at`` others of this rank's: as the backward passes made them, added up, and as the optimizers got them, clipped by
    one norm, or, ``at`` others, each rank's by its own."""
    limit = recording.run.recipe.gradient_clip
    weights = joined_values(recording, trace.before.parameters if at is None else at)
    plain = filled(plain_model(recording), weights)
    expected = gradients_of(recording, replace(trace, batch=whole_batch(recording, trace)), plain)
    sums = added_up(recording, trace)
    expected = {name: gradient for name, gradient in expected.items() if name in sums}
    stages = [sorted(expected)] if at is None else of_all(recording, sorted(trace.update.before.gradients))
    clipped: dict[str, Tensor] = {}
    for names in stages:
        norm = torch.cat([expected[name].flatten() for name in names]).norm().item()
        factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        clipped |= {name: factor * expected[name] for name in names}
    return max(apart(sums, expected), apart(joined_values(recording, trace.update.before.gradients), clipped))


def added_up(recording: Recording, trace: Trace) -> dict[str, Tensor]:
    """Computes the sum over a step's backward passes and over ranks, float64."""
    own: dict[str, Tensor] = {}
    for pass_ in trace.of("backward"):
        for name, gradient in pass_.gradients.items():
            own[name] = own[name] + gradient.double() if name in own else gradient.double()
    total: dict[str, Tensor] = {}
    for every in of_all(recording, own):
        for name, gradient in every.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total


# the order of the passes ----------------------------------------------------------------------------------------------


def passes(traces: Sequence[Trace]) -> list[tuple[int, Pass]]:
    """Lists the passes of several steps, each with its step."""
    return [(trace.step, pass_) for trace in traces for pass_ in trace.passes]


def recomputed(trace: Trace) -> int:
    """Counts forward passes of a step beyond one for each backward pass."""
    return len(trace.of("forward")) - len(trace.of("backward"))


def without_repetition(kinds: Sequence[str], count: int) -> list[str]:
    """Lists the passes of a step of ``count`` micro-batches without the forward passes that come after as many: those
    repeat one for its backward pass."""
    result, seen = [], 0
    for kind in kinds:
        seen += kind == "forward"
        if kind == "backward" or seen <= count:
            result.append(kind)
    return result


def under_way(kinds: Sequence[str]) -> int:
    """Counts the most micro-batches at once between their passes on a stage."""
    most = held = 0
    for kind in kinds:
        held += 1 if kind == "forward" else -1
        most = max(most, held)
    return most


def bubble(kinds: Sequence[Sequence[str]]) -> float:
    """Computes the bubble of the order that the ranks, one a stage, had: micro-batches in their order, both ways."""
    program = []
    for stage, own in enumerate(kinds):
        following = {"forward": 0, "backward": 0}
        ops = []
        for kind in own:
            ops.append(PipelineOp(kind, stage, following[kind], 0))  # type: ignore[arg-type]
            following[kind] += 1
        program.append(ops)
    return float(simulated(program, len(program)).bubble())


def order(recording: Recording, trace: Trace, micro_batches: int) -> dict[str, float]:
    """Computes ``recomputed``: forward passes that every rank makes a second time; ``under_way_first``,
    ``under_way_last``: micro-batches at once on the first rank and on the last; ``bubble`` of a step that begins and
    ends empty."""
    own = without_repetition([pass_.kind for pass_ in trace.passes], micro_batches)
    every = of_all(recording, own)
    again = of_all(recording, recomputed(trace))
    return {
        "recomputed": max(again) if max(again) == min(again) else -1,
        "under_way_first": under_way(every[0]),
        "under_way_last": under_way(every[-1]),
        "bubble": bubble(every),
    }


# versions -------------------------------------------------------------------------------------------------------------


def same_weights(one: Values, other: Values) -> bool:
    """Tells whether two sets of weights are the same to the bit."""
    return all(torch.equal(value, other[name]) for name, value in one.items())


def version_of(weights: Values, traces: Sequence[Trace]) -> int:
    """Tells after how many updates the weights were these; -1 if they never were."""
    states = [trace.before.parameters for trace in traces] + [traces[-1].after.parameters]
    return next((at for at in reversed(range(len(states))) if same_weights(weights, states[at])), -1)


def lateness(recording: Recording, count: int = 1) -> dict[str, float]:
    """Tells by how many updates the weights of the last recorded step's first backward pass, and of the forward pass of
    the same micro-batch, are older than the newest: ``late_forward_first`` and ``late_backward_first`` of the first
    rank, ``late_..._last`` of the last. ``mismatch``: backward passes of all steps and ranks that do not have their
    forward pass's weights. ``count`` micro-batches a step."""
    traces = recording.traces
    forward = [pass_ for _, pass_ in passes(traces) if pass_.kind == "forward"]
    backward = [pass_ for _, pass_ in passes(traces) if pass_.kind == "backward"]
    last = (len(traces) - 1) * count
    newest = len(traces) - 1
    late = [newest - version_of(side[last].parameters, traces) for side in (forward, backward)]
    pairs = zip(forward, backward, strict=False)  # micro-batches that are still under way have no second pass
    every = of_all(recording, (late, sum(not same_weights(f.parameters, b.parameters) for f, b in pairs)))
    return {
        "late_forward_first": every[0][0][0],
        "late_backward_first": every[0][0][1],
        "late_forward_last": every[-1][0][0],
        "late_backward_last": every[-1][0][1],
        "mismatch": sum(mismatch for _, mismatch in every),
    }


@judged(
    "alternates",
    "After its first forward passes every stage makes one forward and one backward pass in turn, over all updates",
    id="no_flush",
    equals=1.0,
)
def steady_order(recording: Recording) -> dict[str, float]:
    """Computes ``under_way_first``, ``under_way_last``: as of :func:`order`, over all recorded steps; ``alternates``:
    whether after its first forward passes every rank makes one pass of each kind in turn, without a flush between
    steps."""
    kinds = [pass_.kind for _, pass_ in passes(recording.traces)]
    every = of_all(recording, kinds)
    turns = []
    for own in every:
        rest = own[own.index("backward") :]
        turns.append(all(one != other for one, other in pairwise(rest)))
    return {
        "under_way_first": under_way(every[0]),
        "under_way_last": under_way(every[-1]),
        "alternates": all(turns),
    }


def copies(recording: Recording, beside: Sequence[Tensor]) -> list[float]:
    """Counts how many copies of its stage's weights each rank has, by their values: those in the model, and those
    beside."""
    whole = sum(parameter.numel() for parameter in recording.run.model.parameters())
    return of_all(recording, 1 + sum(tensor.numel() for tensor in beside) / whole)
