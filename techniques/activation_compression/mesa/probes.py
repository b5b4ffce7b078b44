"""Checks what recorded steps show of Mesa: that the forward pass is exact, whose ranges it keeps and how these follow,
and how far gradients are from exact ones.

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
from suite.reading.judged import judged
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
    """Tells whether it is one of the first steps, in which ranges begin, or the middle one."""
    return run.step in (0, 1, run.recipe.steps // 2)


@judged(
    "changed",
    "Activations are exact in the forward pass; only what is kept is compressed.",
    "The authors' custom_layer_norm.py and others: codes are made beside the forward pass",
    id="exact_forward",
)
@judged(
    "first_off",
    "The running ranges begin as the first batch's, head by head.",
    "The authors' update_clip_val_shift",
    id="first_ranges",
)
@judged(
    "recurrence_off",
    "They follow by an exponential moving average with 0.9.",
    "The authors' update_clip_val_shift; ema_decay: 0.9",
    id="running_ranges",
)
@judged(
    "rounding_off",
    "Within the range rounding is stochastic: the mean of what comes back is the value.",
    "The authors' pack_single_precision with stochastic = True",
    id="unbiased_rounding",
    at_most=5.0,  # standard errors, the largest of 70
    scope="kernel",
)
@judged(
    "code_off",
    "Codes have 256 levels: a value within the range comes back within one step of them.",
    "The authors' README; level: 256",
    id="eight_bits",
    at_most=1.0,
    tolerance=0.001,
    scope="kernel",
)
@judged(
    "outside",
    "What lies outside comes back as the range's end.",
    "The authors' custom_quant.py",
    id="clipped",
    at_most=1e-6,
    scope="kernel",
)
@judged(
    "clipped_off",
    "Codes are made with the running range: where it is far too small, gradients are far off.",
    "The authors' custom_quant.py: codes are made after the update",
    id="running_ranges_clip",
    at_least=0.05,
)
@judged(
    "gradient_off",
    "The backward pass computes with what is restored: gradients are near the exact ones.",
    "The authors' Quant.restore",
    id="close_gradients",
    at_most=0.05,
    note="relative to the gradient's norm",
)
@judged(
    "parameters_packed", "Parameters are not compressed.", "The authors' layers: their inputs are", id="no_parameters"
)
@judged(
    "packed_twice",
    "A tensor that several operators save is coded once.",
    "This entry's variant",
    id="packed_once",
    recipes=["classic"],  # autocast makes copies that are equal
)
def probes(recording: Recording, own: Mesa) -> Mapping[str, float]:
    """``rounding_off`` is of the mean of codes that are made again and again, in standard errors; ``code_off`` the
    largest, in steps of a code; ``gradient_off`` and ``clipped_off`` are relative to the exact gradient's norm. The
    ranges that are ``packed_twice`` or off are counted."""
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
        **_ranges(recording, own.decay),
        **_codes(),
    }


@contextmanager
def _kept(own: Mesa) -> Iterator[None]:
    statistics = dict(own.statistics)
    try:
        yield
    finally:
        own.statistics = statistics


def _ranges(recording: Recording, decay: float) -> dict[str, float]:
    twin = recording.twin()
    technique = twin.run.technique.member(Mesa)
    twin.record_step()
    begun: dict[str, Tensor] = technique.statistics
    now = _of_linears(twin, twin.trace)
    names = [_named(linear, begun) for linear in now]
    begun = dict(begun)
    twin.record_step()
    later = _of_linears(twin, twin.trace)
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
    """Computes the least value and range of each head's part of each linear layer's input, float64 [2, heads]."""
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
    """Finds the name under which such ranges are kept; "" if there is none."""
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
    """Checks values in and out of a range, two heads of it, coded again and again."""
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
