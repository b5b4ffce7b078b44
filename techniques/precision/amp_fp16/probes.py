"""Checks what recorded steps show of float16 training: the scale that gradients really carry, when it changes, what the
update gets, and what is held in which precision.

The scale is read off the backward pass, as the norm of its gradients over that of a pass whose loss is not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.precision.amp_fp16.technique import MixedPrecision

EPS = torch.finfo(torch.float32).eps
STEPS = 4  # of a twin
SAFE = 2.0**10  # a scale so small that twice of it does not overflow, either


@judged("wide_products", "Every linear layer computes in float16", "Section 3.1", id="half_products")
@judged("narrow_weights", "The weights that the optimizer updates are float32", "Section 3.1", id="master_weights")
@judged(
    "o2_rounded_masters",
    "The update starts from the weights that the last one left, not from their float16 copies",
    "Section 3.1, figure 1",
    id="exact_masters",
    note="variant=o2",
)
@judged(
    "scale",
    "The backward pass is that of the loss times 2^16",
    "Section 3.2; torch's initial scale",
    id="scaled",
    equals=65536.0,
    tolerance=0.01,
    note="of the gradients' norm, against a float16 pass that is not scaled and loses the smallest",
)
@judged(
    "update_roundings",
    "The optimizer gets the gradients over S in float32, unscaled before they are clipped",
    "Section 3.2",
    id="unscaled_before_clipping",
    at_most=32.0,  # the norm that clips is a float32 sum
)
@judged(
    "moved_by_overflow",
    "A step with a gradient that is not finite changes no weight",
    "Section 3.2",
    id="overflow_skips",
)
@judged(
    "backed_off",
    "After it the scale is half as large",
    "Section 3.2; torch's backoff",
    id="overflow_halves",
    equals=0.5,
    tolerance=0.01,
)
@judged(
    "grown_early", "The scale stays for 2000 good steps", "torch.amp.GradScaler", id="waits", equals=1.0, tolerance=0.01
)
@judged("grown", "After 2000 good steps it doubles", "torch.amp.GradScaler", id="grows", equals=2.0, tolerance=0.01)
def probes(recording: Recording, own: MixedPrecision) -> Mapping[str, float]:
    """``scale`` is of the first step that updates, times two for each halving before it; a scale that changes is over
    the one before. ``update_roundings`` is of both variants, clipped and not. For a claim, ``o2_bytes`` is of a
    parameter in the passes and the optimizer."""
    o2 = recording.twin(_spelled(recording, "o2"), steps=STEPS)
    plain = recording.twin(steps=STEPS)
    for side in (o2, plain):
        side.run.recipe = replace(side.run.recipe, gradient_clip=0.0)  # clipping hides a scale that is left
        while not (side.traces and side.trace.updates) and len(side.traces) < STEPS:  # the first scale may be too large
            side.record_step()
    overflow, growth = recording.twin(steps=STEPS), recording.twin(steps=STEPS)
    _begin_at(overflow, SAFE, 0)
    with _infinite_gradient(overflow):
        overflow.record_step()
    overflow.record_step()
    with _wide_products(growth) as wide:
        _begin_at(growth, SAFE, 1998)
        for _ in range(3):
            growth.record_step()
    skipped = overflow.traces[0]
    scales = [_scale(growth, trace) for trace in growth.traces]
    return {
        "scale": _scale(plain, plain.trace) * 2.0 ** (len(plain.traces) - 1),
        "wide_products": len(wide),
        "narrow_weights": sum(
            parameter.dtype != torch.float32 for parameter in recording.trace.after.parameters.values()
        ),
        "update_roundings": max(_update_roundings(side) for side in (recording, o2, plain)),
        "moved_by_overflow": _differing(skipped.before.parameters, skipped.after.parameters) + len(skipped.updates),
        "backed_off": _scale(overflow, overflow.trace) / SAFE,
        "grown_early": scales[1] / scales[0],
        "grown": scales[2] / scales[1],
        "o2_rounded_masters": _differing(o2.trace.before.parameters, o2.trace.update.before.parameters),
        "o2_bytes": _bytes_of_a_parameter(o2.trace),
    }


def _spelled(recording: Recording, variant: str) -> str:
    stack = recording.run.job.stack
    return f"{stack},variant={variant}" if ":" in stack else f"{stack}:variant={variant}"


def _technique(recording: Recording) -> MixedPrecision:
    return recording.run.technique.member(MixedPrecision)


def _begin_at(recording: Recording, scale: float, good_steps: int) -> None:
    own = _technique(recording)
    own.scaling = replace(own.scaling, scale=scale, good_steps=good_steps)


def _scale(recording: Recording, trace: Trace) -> float:
    plain = recording.gradients_at(trace.before.parameters, trace)
    return _norm(trace.of("backward")[0].gradients) / _norm(plain)


def _norm(gradients: Values) -> float:
    return math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients.values()))


def _update_roundings(recording: Recording) -> float:
    """Computes how far the gradients that the optimizer got are off, in units of float32's epsilon and a number's
    size."""
    trace, clip = recording.trace, recording.run.recipe.gradient_clip
    scale = 2.0 ** round(math.log2(_scale(recording, trace)))  # a power of two, which loses no bit
    exact = {name: gradient.double() / scale for name, gradient in trace.of("backward")[0].gradients.items()}
    factor = min(1.0, clip / (_norm(exact) + 1e-6)) if clip else 1.0
    got = trace.update.before.gradients
    if got.keys() != exact.keys():
        return math.inf
    return max(_off(got[name], factor * value) for name, value in exact.items())


def _off(got: Tensor, expected: Tensor) -> float:
    if got.dtype != torch.float32:
        return math.inf
    return ((got.double() - expected).abs() / (EPS * expected.abs()).clamp_min(1e-300)).max().item()


def _differing(before: Values, after: Values) -> int:
    return sum(int((after[name] != value).sum()) for name, value in before.items())


def _bytes_of_a_parameter(trace: Trace) -> float:
    gradients, after = trace.of("backward")[0].gradients, trace.after
    held = [value for name in gradients for value in after.state[name].values() if value.numel() > 1]
    held += [trace.of("forward")[0].parameters[name] for name in gradients]
    held += [*gradients.values(), *(after.parameters[name] for name in gradients)]
    counts = sum(gradient.numel() for gradient in gradients.values())
    return sum(tensor.nbytes for tensor in held) / counts


@contextmanager
def _infinite_gradient(recording: Recording) -> Iterator[None]:
    """Lets one number of the last linear layer's gradient overflow meanwhile."""
    weight = recording.run.anatomy.linears[-1].module.weight
    assert isinstance(weight, Tensor)

    def overflowing(gradient: Tensor) -> Tensor:
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = math.inf
        return spoiled

    hook = weight.register_hook(overflowing)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _wide_products(recording: Recording) -> Iterator[set[str]]:
    """Collects linear layers that meanwhile give another dtype than float16."""
    wide: set[str] = set()

    def look(name: str, output: Tensor) -> None:
        if output.dtype != torch.float16:
            wide.add(name)

    hooks = [
        part.module.register_forward_hook(lambda _, __, output, name=part.path: look(name, output))
        for part in recording.run.anatomy.linears
    ]
    try:
        yield wide
    finally:
        for hook in hooks:
            hook.remove()
