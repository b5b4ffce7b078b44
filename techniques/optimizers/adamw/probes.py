"""Tells what recorded steps show of AdamW, in float64: Algorithm 2 read off the weights, with the decay of appendix
B.1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace
from techniques.optimizers.adamw.technique import AdamWTechnique
from techniques.shared.adam_moves import bounds, direction, first_and_middle, moments_off, moved_by_scale, recipes
from techniques.shared.moves import off


def records(run: Run, own: AdamWTechnique) -> bool:
    """Tells whether it is the first step or the one in the middle."""
    return first_and_middle(run)


@judged(
    "idle_roundings",
    "Without gradients the weights shrink by 1 - eta_t lambda a step: the decay does not go through Adam's statistics.",
    "Algorithm 2, line 12, with lambda of appendix B.1",
    id="decay_alone",
    at_most=3.0,  # of the weight: the factor, rounded, and the product
    note="matrices; norms, biases and other vectors stay as they are",
)
@judged(
    "decay_by_rate",
    "The decay follows the schedule's multiplier eta_t, and not the learning rate alpha.",
    "Algorithm 2, line 12",
    equals=1.0,
    tolerance=1e-12,
    note="the decay at eight times the recipe's rate over that at the rate, in float64",
)
@judged(
    "step_roundings",
    "The step is Adam's, both moments corrected for their start at zero and eps outside the root, beside a decay of "
    "the old weights.",
    "Algorithm 2, lines 9 to 12; the step is counted by the trace",
    id="update",
    at_most=5.0,  # of the weight and the step: eight operations at most, each wrong by half a unit, and the decay
)
@judged(
    "moment_roundings",
    "The moments are moving averages of the gradient alone and of its square.",
    "Algorithm 2, lines 6 to 8",
    id="moments",
    at_most=4.0,
)
@judged(
    "moved_by_scale",
    "Neither step nor decay depends on the scale of the gradients, to the bit where eps grows with them.",
    "Algorithm 2; section 2 on what L2 does instead",
    id="gradient_scale",
)
@judged(
    "largest_first_step",
    "Decay aside, the first step moves no coordinate by more than the learning rate.",
    "Algorithm 2 with the moments at zero",
    id="first_step",
    at_most=1.0,
    note="less what the weight's own rounding may add",
)
@judged(
    "step_over_every_bound",
    "Decay aside, a step's size is bounded whatever the gradients were: at most what Cauchy and Schwarz allow for the "
    "two means.",
    "arithmetic of Algorithm 2",
    id="step_bound",
    at_most=1.0,
    note="the step in the middle, at the recipe's betas",
)
def probes(recording: Recording, own: AdamWTechnique) -> Mapping[str, float]:
    """Moments and weights are held against where the gradients and moments before the step lead, ``idle_roundings``
    against the decay alone where no gradient ever came; weights that scaled gradients move differently are counted."""
    moment_roundings = step_roundings = idle_roundings = 0.0
    for trace in recording.traces:
        rate, shrinks = recording.run.recipe.learning_rate_at(trace.step), shrinking(recording.run, own, trace)
        idle = recording.replayed(without_gradients(trace))
        for move in recipes(recording, trace):
            moment_roundings = max(moment_roundings, moments_off(move))
            step = rate * direction(move, trace.step + 1)
            decayed = move.weights * (1 - shrinks if move.weights.ndim >= 2 else 1.0)
            step_roundings = max(step_roundings, off(move.after, decayed - step, move.weights, step))
            idle_roundings = max(idle_roundings, off(idle[move.name], decayed, move.weights))
    return {
        "moment_roundings": moment_roundings,
        "step_roundings": step_roundings,
        "idle_roundings": idle_roundings,
        "moved_by_scale": moved_by_scale(recording),
        "decay_by_rate": decay_at(recording.run, own, 8.0) / decay_at(recording.run, own, 1.0),
        **bounds(recording),
    }


def shrinking(run: Run, own: AdamWTechnique, trace: Trace) -> float:
    """Computes eta_t lambda of a recorded step: the schedule's multiplier times lambda_norm sqrt(b / (B T)), of B T / b
    updates; in torch's form the whole rate times the recipe's decay."""
    rate = run.recipe.learning_rate_at(trace.step)
    if own.decay == "learning_rate":
        return rate * run.recipe.weight_decay
    return rate / run.recipe.learning_rate * own.normalised * math.sqrt(1 / run.recipe.steps)


def without_gradients(trace: Trace) -> Moment:
    """Returns the moment before an update, had no gradient ever come."""
    before = trace.update.before
    zeros = {name: torch.zeros_like(gradient) for name, gradient in before.gradients.items()}
    return replace(before, gradients=zeros, state={})


def decay_at(run: Run, own: AdamWTechnique, times: float) -> float:
    """Measures what the technique's own optimizer takes off a weight of 1 at the peak of a rate so many times as
    large."""
    weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    weight.grad = torch.zeros_like(weight)
    recipe = replace(run.recipe, learning_rate=times * run.recipe.learning_rate)
    own.optimizer([{"params": [weight], "weight_decay": recipe.weight_decay}], recipe).step()
    return 1 - weight.item()
