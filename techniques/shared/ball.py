"""Checks what a recorded step shows of a sharpness-aware update, read from outside: where each gradient was taken, what
the optimizer got, and whether the weights came back.

For the probes of ``sam``, ``vit_sam`` and ``esam``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values

DROPPED = 0.1  # what the twin of a run drops out: baselines of few examples drop out nothing
PASSES = "passes_of_the_twin"


def differing(one: Values, other: Values) -> int:
    """Counts the elements that are not equal; what only one side has differs."""
    alone = [(one.get(name, other.get(name))) for name in one.keys() ^ other.keys()]
    both = sum(int((one[name] != other[name]).sum()) for name in one.keys() & other.keys())
    return both + sum(tensor.numel() for tensor in alone if tensor is not None)


def along(start: Values, end: Values, direction: Values) -> tuple[float, float]:
    """Computes how many times ``direction`` the way from start to end is, by least squares, and how far it is off that
    line: the largest difference in roundings of what was added."""
    ways = {name: end[name].double() - start[name].double() for name in start}
    wide = {name: direction[name].double() for name in direction if name in start}
    square = sum(value.square().sum().item() for value in wide.values())
    if not square:
        raise ValueError("the direction of the recorded step is zero: nothing shows whether weights moved along it")
    times = sum((ways[name] * value).sum().item() for name, value in wide.items()) / square
    worst = 0.0
    for name, way in ways.items():
        step = times * wide[name] if name in wide else torch.zeros_like(way)
        dtype = torch.finfo(start[name].dtype)
        unit = (dtype.eps * (start[name].double().abs() + step.abs())).clamp_min(dtype.tiny)
        worst = max(worst, ((way - step).abs() / unit).max().item())
    return times, worst


def length(values: Values) -> float:
    """Computes the joint L2 norm, float64."""
    return sum(value.double().square().sum().item() for value in values.values()) ** 0.5


def restored(trace: Trace) -> int:
    """Counts weights that are not those of before the step when the optimizer steps, or that move after it."""
    update = trace.update
    return differing(update.before.parameters, trace.before.parameters) + differing(
        update.after.parameters, trace.after.parameters
    )


def received(recording: Recording) -> tuple[float, float]:
    """Computes how the gradients that the optimizer got differ from the last backward pass's: the factor between them
    over the recipe's clipping, and what is left, in roundings."""
    gradients, got = recording.trace.of("backward")[-1].gradients, recording.trace.update.before.gradients
    zero = {name: torch.zeros_like(value) for name, value in got.items()}
    times, off = along(zero, got, gradients)
    limit = recording.run.recipe.gradient_clip
    clipped = min(1.0, limit / length(gradients)) if limit else 1.0
    return times / clipped, off


def with_noise(recording: Recording, differs: Callable[[Recording], int]) -> tuple[int, int]:
    """Returns what ``differs`` counts in the first step of a twin of the run that drops out, where passes of other
    masks would show; and by how many passes a running statistic of the twin's model is off: one a step is right."""
    twin = recording.twin()
    model = twin.run.model
    drop_out(model)
    model.register_buffer(PASSES, torch.zeros(()))
    model.register_forward_pre_hook(_counted)
    twin.record_step()
    passes: Tensor = getattr(model, PASSES).clone()
    return differs(twin), abs(int(passes) - 1)


def drop_out(model: nn.Module) -> None:
    """Makes its dropout, if any, drop a tenth from now on."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPPED


def _counted(model: nn.Module, _: object) -> None:
    getattr(model, PASSES).add_(1)
