"""What recorded steps show of Mesa: that the forward pass is exact, whose ranges it keeps and how these follow, and how
far gradients are from exact ones.

The inputs of the blocks' linear layers are known from outside: a plain forward pass at a step's parameters has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.activation_compression.mesa.codes import decode, encode
from techniques.activation_compression.mesa.technique import Mesa
from techniques.activation_compression.shared.compression_probes import one_pass, relative_error

OF_ITS_BASELINES = True  # the linear layers of their blocks get [..., tokens, channels]
DRAWS = 4096
LEVELS = 2**8 - 1
CLOSE = 1e-6  # a few roundings of float32
TINY = 0.01  # of a tensor's range


def records(run: Run, own: Mesa) -> bool:
    """The first steps, in which ranges begin, and the middle one."""
    return run.step in (0, 1, run.recipe.steps // 2)


def probes(recording: Recording, own: Mesa) -> Mapping[str, float]:
    """``changed``: outputs that are others than a plain pass's by a bit. ``gradient_off``: of the step's gradients from
    exact ones, relative to these in norm; ``clipped_off``: the same where the running ranges were far too small, so
    that much is clipped. ``first_off`` and ``recurrence_off``: inputs of linear layers whose ranges after the first
    step are not the batch's, head by head, or after the second not the running average. ``parameters_packed``: weights
    whose range is among those of activations; ``packed_twice``: ranges that one block has twice. ``rounding_off``: of
    the mean of codes, rounded again and again, from the value, in standard errors; ``code_off``: the largest error of a
    value, in steps of its code; ``outside``: how far beyond its range a value comes back."""
    trace = recording.trace
    plain, exact = one_pass(recording, trace)
    with _kept(own), recording.run.technique.around_step(recording.run):
        packed, _ = one_pass(recording, trace)
    with _kept(own):
        own.statistics = {name: TINY * statistic for name, statistic in own.statistics.items()}
        with recording.run.technique.around_step(recording.run):
            _, clipped = one_pass(recording, trace)
    return {
        "changed": int((packed != plain).sum()),
        "gradient_off": relative_error(trace.of("backward")[0].gradients, exact),
        "clipped_off": relative_error(clipped, exact),
        **_ranges(recording),
        **_codes(),
    }


@contextmanager
def _kept(own: Mesa) -> Iterator[None]:
    statistics = dict(own.statistics)
    try:
        yield
    finally:
        own.statistics = statistics


def _ranges(recording: Recording) -> dict[str, float]:
    twin = recording.twin()
    technique = twin.run.technique.member(Mesa)
    twin.record_step()
    begun: dict[str, Tensor] = technique.statistics
    now = _of_linears(twin, twin.trace)
    names = [_named(linear, begun) for linear in now]
    begun = dict(begun)
    twin.record_step()
    later = _of_linears(twin, twin.trace)
    decay = technique.decay
    off = 0
    for name, linear in zip(names, later, strict=True):
        expected = decay * begun[name].double() + (1 - decay) * linear if name else linear
        off += not name or not _close(technique.statistics[name], expected)
    weights = [
        parameter
        for block in twin.run.anatomy.every_block
        for parameter in block.module.parameters()
        if parameter.ndim >= 2
    ]
    with twin.at(twin.traces[0].before.parameters):
        lows = [weight.detach().amin().item() for weight in weights]
    minima = {value[0].amin().item() for value in begun.values()}
    return {
        "first_off": names.count(""),
        "recurrence_off": off,
        "parameters_packed": sum(low in minima for low in lows),
        "packed_twice": _twice(begun),
    }


def _of_linears(recording: Recording, trace: Trace) -> list[Tensor]:
    """Least value and range of each head's part of each linear layer's input, float64 [2, heads]."""
    run = recording.run
    noted: list[Tensor] = []

    def hook(heads: int) -> Callable[..., None]:
        def note(_: Any, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach()
            x = x.bfloat16() if run.recipe.precision == "bf16" else x
            low, high = x.double().reshape(-1, heads, x.shape[-1] // heads).permute(1, 0, 2).flatten(1).aminmax(dim=1)
            noted.append(torch.stack([low, high - low]))

        return note

    hooks = [
        part.module.register_forward_pre_hook(hook(stack.heads or 1))
        for stack in run.anatomy.stacks
        for block in stack.blocks
        for part in block.linears
    ]
    try:
        recording.outputs_at(trace.before.parameters, trace)
    finally:
        for handle in hooks:
            handle.remove()
    return noted


def _named(expected: Tensor, statistics: Mapping[str, Tensor]) -> str:
    """The name under which such ranges are kept; "" if there is none."""
    return next((name for name, statistic in statistics.items() if _close(statistic, expected)), "")


def _close(ours: Tensor, expected: Tensor) -> bool:
    scale = expected.abs().amax().item()
    return ours.shape == expected.shape and bool(((ours.double() - expected).abs() <= CLOSE * scale).all())


def _twice(statistics: Mapping[str, Tensor]) -> int:
    rows: list[tuple[str, bytes]] = [
        (name.rpartition(".")[0], statistic.numpy().tobytes()) for name, statistic in statistics.items()
    ]
    return len(rows) - len(set(rows))


def _codes() -> dict[str, float]:
    """Values in and out of a range, two heads of it, coded again and again."""
    clip = torch.tensor([[-1.0, 2.0], [3.0, 0.5]])
    noise = torch.Generator().manual_seed(0)
    inside = torch.rand(7, 2, 5, generator=noise) * clip[1, :, None] + clip[0, :, None]
    step = clip[1].double()[:, None] / LEVELS
    back = torch.stack([decode(encode(inside, clip, noise), clip) for _ in range(DRAWS)]).double()
    error = (back - inside.double()) / step
    beyond = torch.tensor([-9.0, 9.0]).expand(1, 2, 2).contiguous()
    ends = torch.stack([clip[0], clip[0] + clip[1]], -1)
    return {
        "rounding_off": (error.mean(0).abs() / (error.std(0) + CLOSE) * math.sqrt(DRAWS)).max().item(),
        "code_off": error.abs().max().item(),
        "outside": (decode(encode(beyond, clip, noise), clip)[0] - ends).abs().max().item(),
    }
