"""Tells what recorded steps show of Adam, in float64: Algorithm 1 read off the weights, the gradients and the
moments."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.optimizers.adam.technique import AdamTechnique
from techniques.shared.adam_moves import bounds, direction, first_and_middle, moments_off, moved_by_scale, recipes
from techniques.shared.moves import Move, off


def records(run: Run, own: AdamTechnique) -> bool:
    """Tells whether it is the first step or the one in the middle."""
    return first_and_middle(run)


@judged(
    "moment_roundings",
    "The moments are moving averages of the gradient and of its square.",
    "Algorithm 1",
    id="moments",
    at_most=4.0,
    note="of float32; with decay=coupled of the gradient with its L2 term, which is rounded before it is squared",
)
@judged(
    "step_roundings",
    "Both moments are corrected for their start at zero, and eps stands outside the root.",
    "Algorithm 1, the last three lines; the step is counted by the trace",
    id="update",
    # of the weight and the step: eight operations at most, each wrong by half a unit, and one of the weight
    at_most=5.0,
)
@judged(
    "undecayed_roundings",
    "Nothing decays: a step is what the plain gradient and the moments before it make, in the gradient as in the "
    "weights.",
    "Algorithm 1, which has no such term",
    id="no_decay",
    at_most=8.0,  # of the weight and of the step's two terms: four of the moments' and four of the step's
    note="decay=none",
)
@judged(
    "moved_by_scale",
    "The step does not depend on the scale of the gradients, to the bit where eps grows with them and nothing decays.",
    "Section 2.1",
    id="gradient_scale",
)
@judged(
    "largest_first_step",
    "The first step moves no coordinate by more than the learning rate: bias correction makes it alpha g / (|g| + "
    "eps).",
    "Sections 2 and 3",
    id="first_step",
    at_most=1.0,
    note="less what the weight's own rounding may add",
)
@judged(
    "step_over_every_bound",
    "A step's size is bounded whatever the gradients were: at most what Cauchy and Schwarz allow for the two means.",
    "Section 2.1, whose own bound is smaller (see the counter-evidence)",
    id="step_bound",
    at_most=1.0,
    note="the step in the middle, at the recipe's betas",
)
def probes(recording: Recording, own: AdamTechnique) -> Mapping[str, float]:
    """Moments and weights are held against where the gradients and moments before the step lead; those that scaled
    gradients move differently are counted."""
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
    """Measures how far the weights are, in roundings, from where Algorithm 1 leads from the plain gradient and the
    moments before the step; those after it, in which a decay may hide, are not read."""
    (beta1, beta2), rate = move.hyper["betas"], move.hyper["lr"]
    old, new = beta1 * move.before("first_moment"), (1 - beta1) * move.gradient
    second = beta2 * move.before("second_moment") + (1 - beta2) * move.gradient.square()
    step = rate / (1 - beta1**steps) / ((second / (1 - beta2**steps)).sqrt() + move.hyper["eps"])
    return off(move.after, move.weights - step * (old + new), move.weights, step * old, step * new)
