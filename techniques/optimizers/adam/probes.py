"""What recorded steps show of Adam, in float64: Algorithm 1 read off the weights, the gradients and the moments."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.contract.recording import Recording
from suite.contract.run import Run
from techniques.optimizers.adam.technique import AdamTechnique
from techniques.shared.adam_moves import bounds, direction, first_and_middle, moments_off, moved_by_scale, recipes
from techniques.shared.moves import off


def records(run: Run, own: AdamTechnique) -> bool:
    """The first step and the one in the middle."""
    return first_and_middle(run)


def probes(recording: Recording, own: AdamTechnique) -> Mapping[str, float]:
    """``moment_roundings``: how far the moments are from the moving averages of the gradient with its L2 term;
    ``step_roundings``: how far the weights are from where the moments lead, both corrected for the number of the step;
    ``moved_by_scale``: weights that gradients and eps 64 times as large move differently; and the bounds on a step."""
    moment_roundings = step_roundings = 0.0
    for trace in recording.traces:
        steps = trace.step + 1 if own.bias_correction else math.inf
        for move in recipes(recording, trace):
            rate, decay = move.hyper["lr"], recording.run.recipe.weight_decay if move.weights.ndim >= 2 else 0.0
            l2, decoupled = (decay, 0.0) if own.decay == "coupled" else (0.0, decay)
            moment_roundings = max(moment_roundings, moments_off(move, l2))
            step = rate * direction(move, steps)
            expected = move.weights * (1 - rate * decoupled) - step
            step_roundings = max(step_roundings, off(move.after, expected, move.weights, step))
    return {
        "moment_roundings": moment_roundings,
        "step_roundings": step_roundings,
        "moved_by_scale": moved_by_scale(recording, weight_decay=0.0),
        **bounds(recording),
    }
