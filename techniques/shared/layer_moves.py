"""Computes how a recorded step moved each layer, in float64: shared by the probes of ``lamb``, ``lars`` and
``layerwise_trust``.

Distances are in roundings: units of the last place of the terms that were added up, however they cancel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Moment, Update

FAR = 1e9  # stands for a distance that is not finite, which no claim would take for a value
TIMES = 2.0**12
POWERS = 7  # layers are scaled by 2, 4, ..., 2 ** POWERS: powers of 2 scale floats without rounding


def layers(update: Update) -> Iterator[tuple[str, Tensor, Tensor, Mapping[str, Any]]]:
    """Yields name, weights, gradient and hyper-parameters before the step of all that has a gradient; float64."""
    before = update.before
    for name, gradient in before.gradients.items():
        yield name, before.parameters[name].double(), gradient.double(), before.hyper[name]


def roundings(actual: Tensor, expected: Tensor, terms: Tensor) -> float:
    """Computes the largest distance of ``actual`` from ``expected``, in roundings of ``terms``, the sizes that were
    summed: no finer than those of the smallest normal number, below which floats lie as far apart as there."""
    precision = torch.finfo(actual.dtype)
    off = (actual.double() - expected).abs() / (precision.eps * (terms + precision.smallest_normal))
    return off.nan_to_num(nan=FAR, posinf=FAR).max().item()


def sum_roundings(terms: Tensor) -> float:
    """Computes by how many roundings two norms of so many float32 terms may be off: errors of either sign add up as a
    root."""
    return 2 * math.sqrt(terms.numel())


def moved_by_scale(recording: Recording, state: Mapping[str, int], least_dims: int = 0, **hyper: float) -> int:
    """Counts the weights that the step moves differently where each layer's gradients are multiplied by a power of 2 of
    its own, and its ``state`` by that factor to the power given; with ``hyper`` in both. Of layers of ``least_dims`` or
    more.

    In float64, as in float32 squares of the gradients that rounding alone makes, such as a key's bias gets, underflow.
    """
    before = _wide(recording.trace.update.before)
    before = replace(before, hyper={name: {**own, **hyper} for name, own in before.hyper.items()})
    factors = {name: 2.0 ** (1 + number % POWERS) for number, name in enumerate(before.gradients)}
    scaled = replace(
        before,
        gradients={name: factors[name] * gradient for name, gradient in before.gradients.items()},
        state={
            name: {key: value * factors[name] ** state[key] if key in state else value for key, value in own.items()}
            for name, own in before.state.items()
        },
    )
    one, other = recording.replayed(before), recording.replayed(scaled)
    return sum(int((one[name] != other[name]).sum()) for name in factors if one[name].ndim >= least_dims)


def _wide(before: Moment) -> Moment:
    """Returns ``before`` in float64, but for the counters of the state, which have no dimension."""
    return replace(
        before,
        parameters={name: parameter.double() for name, parameter in before.parameters.items()},
        gradients={name: gradient.double() for name, gradient in before.gradients.items()},
        state={
            name: {key: value.double() if getattr(value, "ndim", 0) else value for key, value in own.items()}
            for name, own in before.state.items()
        },
    )


def uneven_by_weights(recording: Recording, **hyper: float) -> int:
    """Counts the weights of matrices that are not in proportion after a step from weights TIMES as large, or as small,
    with ``hyper`` in all."""
    before = recording.trace.update.before
    before = replace(before, hyper={name: {**own, **hyper} for name, own in before.hyper.items()})
    matrices = [name for name in before.gradients if before.parameters[name].ndim >= 2]
    one, uneven = recording.replayed(before), 0
    for times in (TIMES, 1 / TIMES):
        scaled = replace(before, parameters={name: times * parameter for name, parameter in before.parameters.items()})
        other = recording.replayed(scaled)
        uneven += sum(int((times * one[name] != other[name]).sum()) for name in matrices)
    return uneven
