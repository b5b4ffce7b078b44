"""What a recorded step shows of Lion, in float64: Algorithm 2 read off the weights, the gradients and the momentum."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.recording import Recording
from techniques.optimizers.lion.technique import LionTechnique
from techniques.shared.moves import different, moves, off, over_the_baselines, scaled

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
    step_roundings = momentum_roundings = 0.0
    against = moved = 0
    for move in moves(update):
        (beta1, beta2), rate = move.hyper["betas"], move.hyper["lr"]
        momentum, g = move.before("momentum"), move.gradient
        decayed = move.weights * (1 - rate * move.hyper["weight_decay"])
        step = (move.after.double() - decayed) / -rate
        whole = step.round().clamp(-1, 1)
        step_roundings = max(step_roundings, off(move.after, decayed - rate * whole, move.weights, rate))
        terms = torch.stack([beta1 * momentum, (1 - beta1) * g])
        clear = terms.sum(0).abs() > FINE * terms.abs().amax(0)
        against += int((whole != terms.sum(0).sign())[clear].sum())
        moved += int((whole != 0).sum())
        expected = beta2 * momentum + (1 - beta2) * g
        momentum_roundings = max(momentum_roundings, off(move.state("momentum"), expected, momentum, g))
    if not moved:
        raise ValueError("the recorded step of Lion moved no weight")
    larger = scaled(update.before, TIMES, {"momentum": 1})
    return {
        "step_roundings": step_roundings,
        "against": against,
        "momentum_roundings": momentum_roundings,
        "moved_by_scale": different(recording.replayed(larger), update.after.parameters),
        **over_the_baselines(recording),
    }
