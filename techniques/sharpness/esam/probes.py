"""What recorded steps show of ESAM: which weights were perturbed, how far, and which examples it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.shared.ball import along, differing, length, received, restored, with_noise
from techniques.sharpness.esam.technique import Esam

STEPS = 16  # the last of a run: a share of drawn tensors needs many draws


def records(run: Run, own: Esam) -> bool:
    return run.step >= run.recipe.steps - STEPS


def probes(recording: Recording, own: Esam) -> Mapping[str, float]:
    """``perturbed_share``: of the tensors, over all recorded steps, those that were drawn;
    ``equal_draws``: steps that drew the same as the step before. Of the last recorded step: ``radius`` and
    ``off_the_gradient``, how far the second gradient's point is along the plain gradient of the drawn tensors, over
    rho, and from that line, in roundings; ``gradient_differs``: elements of the second gradient that are not the plain
    one's of the sharpest examples; the others are of :mod:`techniques.shared.ball`.

    Nothing of a run of several ranks, where each draws on its own, or without a ball.
    """
    if recording.run.world_size > 1 or not own.rho:
        return {}
    trace = recording.trace
    weights, point = trace.before.parameters, trace.of("backward")[-1].parameters
    plain = recording.gradients_at(weights)
    draws = [_drawn(trace, own.norm) & plain.keys() for trace in recording.traces]
    direction = plain if own.norm == "all" else {name: plain[name] for name in draws[-1]}
    times, off = along(weights, point, {name: plain[name] for name in draws[-1]})
    factor, left = received(recording)

    def differs(recording: Recording) -> int:
        return _differing(recording, own.gamma)

    noise, statistics = with_noise(recording, differs)
    return {
        "perturbed_share": sum(map(len, draws)) / (len(draws) * len(plain)),
        "equal_draws": sum(one == other for one, other in pairwise(draws)),
        "radius": times * length(direction) / own.rho,
        "off_the_gradient": off,
        "gradient_differs": differs(recording),
        "not_restored": restored(trace),
        "received": factor,
        "received_roundings": left,
        "noise_differs": noise,
        "statistics_off": statistics,
    }


def _drawn(trace: Trace, norm: str) -> frozenset[str]:
    """The tensors that the first gradient was computed for; where that is all, those that moved."""
    first, last = trace.of("backward")[0], trace.of("backward")[-1]
    if norm == "selected":
        return frozenset(first.gradients)
    return frozenset(
        n for n, parameter in last.parameters.items() if not torch.equal(parameter, trace.before.parameters[n])
    )


def _differing(recording: Recording, gamma: float) -> int:
    trace, last = recording.trace, recording.trace.of("backward")[-1]
    rise = _losses(recording, last.parameters) - _losses(recording, trace.before.parameters)
    left_out = sorted(range(len(rise)), key=rise.tolist().__getitem__)[: len(rise) - max(1, round(gamma * len(rise)))]
    indices = torch.tensor([index for index in range(len(rise)) if index not in left_out])
    sharpest = replace(trace, batch={name: tensor[indices] for name, tensor in trace.batch.items()})
    return differing(last.gradients, recording.gradients_at(last.parameters, sharpest))


def _losses(recording: Recording, parameters: Values) -> Tensor:
    run = recording.run
    return run.baseline.losses(recording.outputs_at(parameters), recording.trace.batch)
