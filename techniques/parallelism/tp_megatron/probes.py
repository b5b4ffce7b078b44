"""Checks what recorded steps of every rank, and one pass more, show of tensor parallelism: whose part, which gradient,
and what the ranks send each other.

The ranks' parts are put together by what they must be, and not as the technique divides them: the r-th N-th of a
layer's inputs or outputs, of each third of a fused one's.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.run import Run
from suite.meters.communication import Communication
from suite.model.anatomy import Anatomy, anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.parallelism.shared.pipeline_probes import of_all, whole_batch
from techniques.parallelism.tp_megatron.technique import TensorParallel
from techniques.shared.plain import apart, filled, gradients_of, plain_model

OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's
STEPS = 3
FUSED = 3  # query, key and value
PASSES = ("forward", "backward")


def records(run: Run, own: TensorParallel) -> bool:
    """Selects the first steps."""
    return run.step < STEPS


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "loss_roundings",
    "The loss is one process's on the whole batch",
    "Section 3: f and g leave the function as it is",
    id="same_loss",
    at_most=100.0,  # sums of some hundred terms, in another order, through every layer
    sizes=["pico", "nano"],
)
@judged(
    "gradient_roundings",
    "The gradients are those of one process on the whole batch, clipped by one norm",
    "Section 3: f and g leave the function as it is",
    id="one_process_gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
@judged(
    "unequal",
    "What is not cut stays equal on all ranks, to the bit",
    "Section 3: each model parallel worker optimizes its own set of parameters; all values are local or duplicated",
    id="equal_replicas",
)
@judged(
    "not_evaluated",
    "The model that is evaluated is that of all ranks, to the bit",
    "This entry's evaluation",
    id="gathered",
)
@judged(
    "cut_outside",
    "Outside of the blocks' linear layers every rank has the whole model",
    "This entry's variant: embeddings and head are replicated",
    id="only_linear_layers",
)
@judged(
    "other", "A pass asks for no collective but these all-reduces", "Section 3, figure 4", id="nothing_else_is_sent"
)
@judged(
    "same_inside",
    "Between f and g every rank draws its own random numbers",
    "Section 3: dropout within model parallel regions has a seed of its own on each worker",
    id="own_dropout_inside",
)
@judged(
    "other_outside",
    "Outside of f and g all ranks draw the same random numbers",
    "Section 3: the random number generators of the dropout outside are seeded alike",
    id="one_dropout_outside",
)
@judged(
    "other_start",
    "The ranks' parts together are the model that one process begins with, to the bit",
    "Section 3, figure 3",
    id="parts_of_one_model",
)
@judged(
    "unsaid",
    "Each part of a parameter is in a group that says so, and optimizers that need whole layers refuse it",
    "This entry's limitation",
    id="optimizers_are_told",
)
def probes(recording: Recording, own: TensorParallel) -> Mapping[str, float]:
    """Includes what :func:`holdings`, :func:`gradient_roundings` and :func:`one_more_pass` say."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    plain = plain_model(recording)
    return {
        "ranks": recording.run.world_size,
        **holdings(recording, plain),
        **one_more_pass(recording),
        "gradient_roundings": max(gradient_roundings(recording, trace) for trace in recording.traces),
    }


def joined(recording: Recording, plain: nn.Module, own: Values) -> dict[str, Tensor]:
    """Joins what the ranks have of them into the whole parameters, float64."""
    every = of_all(recording, {name: value.detach().double() for name, value in own.items()})
    lists = _lists(anatomy(plain))
    shapes = {name: parameter.shape for name, parameter in plain.named_parameters()}
    return {name: _joined([values[name] for values in every], shapes[name], lists.get(name, 1)) for name in every[0]}


def _joined(parts: list[Tensor], shape: torch.Size, lists: int) -> Tensor:
    cut = [at for at, size in enumerate(shape) if parts[0].shape[at] != size]
    if not cut:
        return parts[0]
    rows = [part.unflatten(cut[0], (lists, -1)) for part in parts]
    return torch.cat(rows, cut[0] + 1).flatten(cut[0], cut[0] + 1)


def _lists(parts: Anatomy) -> dict[str, int]:
    """Lists the parameters that make queries, keys and values, one after the other."""
    fused = [block.projections["qkv"].path for block in parts.every_block if "qkv" in block.projections]
    return {f"{path}.{name}": FUSED for path in fused for name in ("weight", "bias")}


def holdings(recording: Recording, plain: nn.Module) -> dict[str, float]:
    """Computes ``matrix_share``: the values of the blocks' matrices on this rank over the model's, and ``state_share``
    the same of their moments; ``cut_outside``: values outside of the blocks' linear layers that the rank has not;
    ``unequal``: values of whole parameters in which ranks differ; ``other_start``: values that the ranks together began
    with and one process does not, and ``not_evaluated`` those of the evaluated model that are not the ranks' together;
    ``unsaid``: parameters that are parts, of which the optimizer was not told so."""
    run = recording.run
    own, whole = dict(run.model.named_parameters()), dict(plain.named_parameters())
    layers = anatomy(plain).linears
    matrices = [f"{part.path}.weight" for part in layers]
    total = sum(whole[name].numel() for name in matrices)
    moments = [value for name in matrices for value in run.optimizer.state[own[name]].values() if value.numel() > 1]
    alike = [name for name in whole if own[name].shape == whole[name].shape]
    every = of_all(recording, {name: own[name].detach().clone() for name in alike})
    seen = dict(run.technique.evaluated(run.model, run).named_parameters())
    truth = joined(recording, plain, own)
    start = joined(recording, plain, recording.traces[0].before.parameters)
    sharded = {
        id(parameter) for group in run.optimizer.param_groups if group.get("sharded") for parameter in group["params"]
    }
    inside = {f"{part.path}.{name}" for part in layers for name in ("weight", "bias")}
    return {
        "matrix_share": sum(own[name].numel() for name in matrices) / total,
        "state_share": sum(moment.numel() for moment in moments) / (2 * total),
        "cut_outside": sum(whole[name].numel() - own[name].numel() for name in whole if name not in inside),
        "unequal": sum(int((values[name] != every[0][name]).sum()) for values in every for name in alike),
        "other_start": sum(int((start[name] != value).sum()) for name, value in whole.items()),
        "unsaid": sum(own[name].shape != value.shape and id(own[name]) not in sharded for name, value in whole.items()),
        "not_evaluated": sum(
            int((truth[name] != seen[name]).sum()) if seen[name].shape == value.shape else value.numel()
            for name, value in whole.items()
        ),
    }


def gradient_roundings(recording: Recording, trace: Trace) -> float:
    """Computes how far a step's gradients, as made and as clipped, are from one process's on the whole batch; and,
    where it keeps what all ranks have in common, on any rank."""
    limit = recording.run.recipe.gradient_clip
    plain = plain_model(recording)
    filled(plain, joined(recording, plain, trace.before.parameters))
    expected = gradients_of(recording, replace(trace, batch=whole_batch(recording, trace)), plain)
    gradients = joined(recording, plain, trace.of("backward")[0].gradients)
    got = joined(recording, plain, trace.update.before.gradients)
    expected = {name: gradient for name, gradient in expected.items() if name in gradients}
    norm = torch.cat([gradient.flatten() for gradient in expected.values()]).norm().item()
    factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
    return max(apart(gradients, expected), apart(got, {name: factor * gradient for name, gradient in expected.items()}))


class Collectives(TorchDispatchMode):
    """Counts the collectives that a rank asks for, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.count[func._overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def one_more_pass(recording: Recording) -> dict[str, float]:
    """Counts in a pass on the last recorded batch: ``forward_reductions`` and ``backward_reductions`` a layer;
    ``other`` collectives; ``volume``: their bytes over those of the hidden states that the layers' branches end in,
    four times; ``loss_roundings``: its loss from the plain model's; and of torch's random state at the end of each
    branch, ``same_inside``: before it is joined, equal on all ranks; ``other_outside``: after it, not."""
    run, trace = recording.run, recording.trace
    whole = whole_batch(recording, trace)
    parts = anatomy(run.model)
    ends = [part for block in parts.every_block for part in block.branches]
    inside: list[int] = []
    outside: list[int] = []
    sizes: list[int] = []

    def after(_: nn.Module, args: Any, output: Tensor) -> None:
        outside.append(_state())
        sizes.append(output.numel() * output.element_size())

    hooks = [part.module.register_forward_pre_hook(lambda *_: inside.append(_state())) for part in ends]
    hooks += [part.module.register_forward_hook(after) for part in ends]
    run.optimizer.zero_grad(set_to_none=True)
    counts = {name: Collectives() for name in PASSES}
    with Communication() as sent:
        with counts["forward"]:
            loss = run.forward(whole)
        with counts["backward"]:
            run.backward(loss)
    for hook in hooks:
        hook.remove()
    run.optimizer.zero_grad(set_to_none=True)
    layers = len(parts.every_block)
    reductions = {name: count.count.pop("allreduce_", 0) / layers for name, count in counts.items()}
    states = list(zip(*of_all(recording, list(zip(inside, outside, strict=True))), strict=True))
    return {
        **{f"{name}_reductions": reduction for name, reduction in reductions.items()},
        "other": sum(sum(count.count.values()) for count in counts.values()),
        "volume": sent.bytes_by_collective["allreduce_"] / (2 * sum(sizes)) if sizes else 0.0,
        "loss_roundings": _loss_roundings(recording, whole, loss),
        "same_inside": sum(len({own for own, _ in state}) < run.world_size for state in states),
        "other_outside": sum(len({own for _, own in state}) > 1 for state in states),
    }


def _state() -> int:
    return zlib.crc32(torch.get_rng_state().numpy().tobytes())


def _loss_roundings(recording: Recording, batch: Mapping[str, Tensor], loss: Tensor) -> float:
    """Returns the largest distance over ranks of the loss from one process's, in roundings."""
    run, plain = recording.run, plain_model(recording)
    filled(plain, joined(recording, plain, dict(run.model.named_parameters())))
    with torch.no_grad():
        expected = run.baseline.losses(run.baseline.forward(plain, dict(batch)), dict(batch)).mean().item()
    off = abs(loss.item() - expected) / (abs(expected) * torch.finfo(torch.float32).eps)
    return max(of_all(recording, off))
