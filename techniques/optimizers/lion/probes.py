"""Tells what a recorded step shows of Lion, in float64: Algorithm 2 read off the weights, the gradients and the
momentum."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.optimizers.lion.technique import LionTechnique
from techniques.shared.moves import different, moves, off, over_the_baselines, scaled

FINE = 1e-5  # of the larger term: the sign of a smaller interpolation is rounding's to decide
TIMES = 64.0  # a power of 2 scales floats without rounding


@judged(
    "step_roundings",
    "Apart from decoupled decay, every coordinate moves by exactly the learning rate, or not at all.",
    "Algorithm 2",
    id="sign_step",
    at_most=4.0,  # of the weight: decay multiplies, the step is added
)
@judged(
    "against",
    "The sign is that of beta1 m + (1 - beta1) g, with the momentum of before the step.",
    "Algorithm 2, line 5",
    id="direction",
)
@judged(
    "momentum_roundings",
    "The momentum then moves with beta2: it is not what the sign is taken of.",
    "Algorithm 2, line 7",
    id="momentum",
    at_most=4.0,
)
@judged(
    "moved_by_scale",
    "The step does not depend on the scale of the gradients.",
    "Algorithm 2: the sign of what is linear in the gradients",
    id="gradient_scale",
)
@judged(
    "rate",
    "The authors' setting for ViT: a tenth of AdamW's learning rate.",
    "README of the authors' implementation",
    equals=0.1,
    tolerance=1e-6,
)
@judged(
    "decay",
    "Ten times AdamW's decay, so that the product with the rate, the strength of decay, stays.",
    "README of the authors' implementation",
    equals=1.0,
    tolerance=1e-6,
)
def probes(recording: Recording, own: LionTechnique) -> Mapping[str, float]:
    """Raises ValueError where no weight moved: such a step shows nothing."""
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
