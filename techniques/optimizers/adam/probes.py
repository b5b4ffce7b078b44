"""What recorded steps show of Adam, in float64: Algorithm 1 read off the weights, the gradients and the moments."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.optimizers.adam.technique import AdamTechnique
from techniques.shared.adam_moves import bounds, direction, first_and_middle, moments_off, moved_by_scale, recipes
from techniques.shared.moves import Move, off


def records(run: Run, own: AdamTechnique) -> bool:
    """The first step and the one in the middle."""
    return first_and_middle(run)


def probes(recording: Recording, own: AdamTechnique) -> Mapping[str, float]:
    """``moment_roundings``: how far the moments are from the moving averages of the gradient, with its L2 term
    where the decay is coupled; ``step_roundings``: how far the weights are from where the moments lead, both corrected
    for the number of the step; ``undecayed_roundings``, without a decay: how far they are from where the plain gradient
    and the moments before the step lead;
    ``moved_by_scale``: weights that gradients and eps 64 times as large move differently; and the bounds on a step."""
    moment_roundings = step_roundings = undecayed_roundings = 0.0
    reference = recording.run.baseline.recipe_of(recording.run.job.setting)
    for trace in recording.traces:
        steps = trace.step + 1 if own.bias_correction else math.inf
        for move in recipes(recording, trace):
            rate, decay = move.hyper["lr"], reference.weight_decay if move.weights.ndim >= 2 else 0.0
            l2, decoupled = (decay if own.decay == form else 0.0 for form in ("coupled", "decoupled"))
            moment_roundings = max(moment_roundings, moments_off(move, l2))
            step = rate * direction(move, steps)
            expected = move.weights * (1 - rate * decoupled) - step
            step_roundings = max(step_roundings, off(move.after, expected, move.weights, step))
            undecayed_roundings = max(undecayed_roundings, undecayed_off(move, steps))
    undecayed = {"undecayed_roundings": undecayed_roundings} if own.decay == "none" else {}
    return {
        "moment_roundings": moment_roundings,
        "step_roundings": step_roundings,
        **undecayed,
        "moved_by_scale": moved_by_scale(recording, weight_decay=0.0),
        **bounds(recording),
    }


def undecayed_off(move: Move, steps: float) -> float:
    """How far the weights are, in roundings, from where Algorithm 1 leads from the plain gradient and the moments
    before the step; those after it, in which a decay may hide, are not read."""
    (beta1, beta2), rate = move.hyper["betas"], move.hyper["lr"]
    old, new = beta1 * move.before("first_moment"), (1 - beta1) * move.gradient
    second = beta2 * move.before("second_moment") + (1 - beta2) * move.gradient.square()
    step = rate / (1 - beta1**steps) / ((second / (1 - beta2**steps)).sqrt() + move.hyper["eps"])
    return off(move.after, move.weights - step * (old + new), move.weights, step * old, step * new)
