"""Checks what recorded steps show of ESAM: which weights were perturbed, how far, and which examples it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.shared.ball import along, differing, length, received, restored, with_noise
from techniques.sharpness.esam.technique import Esam

STEPS = 16  # the last of a run: a share of drawn tensors needs many draws


def records(run: Run, own: Esam) -> bool:
    return run.step >= run.recipe.steps - STEPS


@judged(
    "gradient_differs",
    "The update is along the gradient, at w + e, of the gamma |B| examples whose loss rose most.",
    "Section 3.2",
    id="half_the_batch",
)
@judged(
    "perturbed_share",
    "Each tensor is perturbed with probability beta.",
    "Section 3.1",
    id="perturbed_tensors",
    equals=0.6,
    tolerance=0.15,
    note="beta 0.6; tolerance: four standard deviations of 16 steps of 30 tensors",
)
@judged(
    "equal_draws",
    "Every step draws its own tensors.",
    "Algorithm 1",
    id="drawn_again",
    note="two draws of 30 tensors are equal once in 10^8",
)
@judged(
    "radius",
    "The perturbation is rho / beta long, up along the gradient: 1.667 rho at beta = 0.6.",
    "utils/Esam.py: the norm of the drawn tensors, divided by beta",
    equals=1.6666667,
    tolerance=1e-4,
    note="float32 weights",
)
@judged(
    "off_the_gradient",
    "The drawn tensors move along their one joint gradient, and no other tensor moves.",
    "utils/Esam.py",
    id="one_direction",
    at_most=4.0,  # the product, the sum, and the fit of the length
)
@judged(
    "noise_differs",
    "The rise of a loss is not that of other dropout masks.",
    "Section 3.2: the same network twice; the authors' code draws masks anew",
    id="same_noise",
    note="the run's first step with a dropout of 0.1",
)
@judged(
    "not_restored", "The optimizer steps from the weights of before, to the bit.", "Algorithm 1", id="weights_restored"
)
@judged(
    "received_roundings",
    "The optimizer gets the last gradient and nothing of the first.",
    "Algorithm 1",
    id="base_step",
    at_most=2.0,
)
@judged(
    "received",
    "The last gradient is clipped as the reference's would be.",
    "Algorithm 1: the base optimizer's step",
    id="clipped_once",
    equals=1.0,
    tolerance=1e-5,
)
@judged(
    "statistics_off",
    "Running statistics are those of the pass at the weights themselves.",
    "the convention of implementations with batch normalisation; the paper is silent",
    id="running_statistics",
)
def probes(recording: Recording, own: Esam) -> Mapping[str, float]:
    """``perturbed_share`` and ``equal_draws`` are over all recorded steps, all others of the last one: ``radius`` over
    rho, others as in :mod:`techniques.shared.ball`. A run of several ranks, where each draws on its own, or without a
    ball shows nothing."""
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
    """Finds the tensors that the first gradient was computed for; where that is all, those that moved."""
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
