"""What a recorded step shows of Lion, in float64: Algorithm 2 read off the weights, the gradients and the momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from suite.contract.recording import Recording
from suite.contract.trace import Moment
from techniques.optimizers.lion.technique import LionTechnique

FINE = 1e-5  # of the larger term: the sign of a smaller interpolation is rounding's to decide
TIMES = 64.0  # a power of 2 scales floats without rounding


def probes(recording: Recording, own: LionTechnique) -> Mapping[str, float]:
    """``step_roundings``: how far a step, decay aside, is from 0 or 1 learning rate, in roundings of the weight;
    ``against``: coordinates that did not go against the interpolation's sign; ``momentum_roundings``: from the moving
    average with beta2; ``moved_by_scale``: weights that gradients TIMES as large move differently; ``rate`` and
    ``decay``: the learning rate, and its product with the weight decay, over AdamW's.

    Raises ValueError where no weight moved.
    """
    update = recording.trace.update
    before, after = update.before, update.after
    step_roundings = momentum_roundings = 0.0
    against = moved = 0
    for name, gradient in before.gradients.items():
        hyper, weights = before.hyper[name], before.parameters[name].double()
        (beta1, beta2), rate = hyper["betas"], hyper["lr"]
        momentum, g = before.state[name]["momentum"].double(), gradient.double()
        step = (update.moved(name) + rate * hyper["weight_decay"] * weights) / -rate
        unit = (torch.finfo(gradient.dtype).eps * (weights.abs() + rate)) / rate
        off = torch.where(step.abs() < 0.5, step.abs(), (step.abs() - 1).abs())
        step_roundings = max(step_roundings, (off / unit).max().item())
        terms = torch.stack([beta1 * momentum, (1 - beta1) * g])
        clear = terms.sum(0).abs() > FINE * terms.abs().amax(0)
        against += int((step.sign()[clear] * (step.abs()[clear] > 0.5) != terms.sum(0).sign()[clear]).sum())
        moved += int((step.abs() > 0.5).sum())
        expected, kept = beta2 * momentum + (1 - beta2) * g, after.state[name]["momentum"]
        unit = torch.finfo(kept.dtype).eps * (momentum.abs() + g.abs())
        momentum_roundings = max(
            momentum_roundings, ((kept.double() - expected).abs() / unit).nan_to_num().max().item()
        )
    if not moved:
        raise ValueError("the recorded step of Lion moved no weight")
    reference = recording.run.baseline.recipe_of(recording.run.job.setting)
    rates = {hyper["lr"] / reference.learning_rate_at(recording.trace.step) for hyper in before.hyper.values()}
    decays = {hyper["lr"] * hyper["weight_decay"] for hyper in before.hyper.values()}
    (rate,) = rates
    decay = max(decays) / (reference.learning_rate_at(recording.trace.step) * reference.weight_decay)
    return {
        "rate": rate,
        "decay": decay,
        "step_roundings": step_roundings,
        "against": against,
        "momentum_roundings": momentum_roundings,
        "moved_by_scale": sum(
            int((ours != after.parameters[name]).sum()) for name, ours in recording.replayed(_scaled(before)).items()
        ),
    }


def _scaled(before: Moment) -> Moment:
    gradients = {name: TIMES * each for name, each in before.gradients.items()}
    state = {name: {"momentum": TIMES * each["momentum"]} for name, each in before.state.items()}
    return replace(before, gradients=gradients, state=state)
