"""What recorded steps show of AdamW, in float64: Algorithm 2 read off the weights, with the decay of appendix B.1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace
from techniques.optimizers.adamw.technique import AdamWTechnique
from techniques.shared.adam_moves import bounds, direction, first_and_middle, moments_off, moved_by_scale, recipes
from techniques.shared.moves import off


def records(run: Run, own: AdamWTechnique) -> bool:
    """The first step and the one in the middle."""
    return first_and_middle(run)


def probes(recording: Recording, own: AdamWTechnique) -> Mapping[str, float]:
    """``moment_roundings``: how far the moments are from the moving averages of the gradient alone; ``step_roundings``
    and ``idle_roundings``: how far the weights are from where the moments lead and the decay, and from where the decay
    alone does when no gradient ever came; ``moved_by_scale``: weights that gradients and eps 64 times as large move
    differently, decay included; ``decay_by_rate``: the decay at eight times the rate over that at the rate; and the
    bounds on a step."""
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
    """eta_t lambda of a recorded step: the schedule's multiplier times lambda_norm sqrt(b / (B T)), of
    B T / b updates; in torch's form the whole rate times the recipe's decay."""
    rate = run.recipe.learning_rate_at(trace.step)
    if own.decay == "learning_rate":
        return rate * run.recipe.weight_decay
    return rate / run.recipe.learning_rate * own.normalised * math.sqrt(1 / run.recipe.steps)


def without_gradients(trace: Trace) -> Moment:
    """The moment before an update, had no gradient ever come."""
    before = trace.update.before
    zeros = {name: torch.zeros_like(gradient) for name, gradient in before.gradients.items()}
    return replace(before, gradients=zeros, state={})


def decay_at(run: Run, own: AdamWTechnique, times: float) -> float:
    """What the technique's own optimizer takes off a weight of 1 at the peak of a rate so many times as large."""
    weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    weight.grad = torch.zeros_like(weight)
    recipe = replace(run.recipe, learning_rate=times * run.recipe.learning_rate)
    own.optimizer([{"params": [weight], "weight_decay": recipe.weight_decay}], recipe).step()
    return 1 - weight.item()
