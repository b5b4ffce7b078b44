"""Tells what recorded steps show of Nesterov's form for networks, and checks the theorem on the model's own head, in
float64.

The theorem is read off the technique's own optimizer with the schedule t_k: least squares for the output layer on its
frozen features are convex, and their smoothness L, minimum and minimiser are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.optimizers.nesterov_agd.head_regression import head_regression
from techniques.optimizers.nesterov_agd.technique import NesterovAGD
from techniques.optimizers.shared.sgd_moves import (
    pushed,
    recipes,
    step_off,
    strengths,
    terminal_off,
    velocity,
    velocity_off,
)
from techniques.shared.moves import off

GRADIENTS = 300


def records(run: Run, own: NesterovAGD) -> bool:
    """Tells whether it is the first step, or one of two that follow each other in the middle."""
    middle = run.recipe.steps // 2
    return run.step in (0, middle - 1, middle)


@judged(
    "bound_used",
    "f(x_k) - f* is at most 2 L ||x_0 - x*||^2 / (k + 1)^2 after every one of 300 gradients.",
    "Theorem 1 (in the constants of Beck & Teboulle 2009, theorem 4.4)",
    id="bound",
    at_most=1.0,
    scope="module",
    note=(
        "least squares for the trained model's own output layer on its frozen features: convex, with known L, f* and x*"
    ),
)
@judged(
    "accelerated_over_gradient_descent",
    "The value is nearer the minimum than gradient descent's after as many gradients.",
    "the rate O(1/k^2) against O(1/k)",
    id="faster_than_descent",
    below=1.0,
    scope="module",
    note="300 gradients; an upper bound does not imply it for every problem",
)
@judged(
    "scheme_roundings",
    "The points are those of the scheme: a step of 1/L from the point ahead, then (t_k - 1) / t_{k+1} of the way "
    "since the last.",
    "Theorem 1 (in the form of Beck & Teboulle 2009, equations 4.1 to 4.3)",
    id="scheme",
    at_most=8.0,  # of float64: five operations, of which momentum brings in each twice at most
    scope="module",
    note="the technique's own optimizer with schedule = convex, on the same least squares",
)
@judged(
    "look_ahead_roundings",
    "In the form for networks, too, the gradient is taken ahead: at x_k + mu (x_k - x_{k-1}), with x_k = y_k - eta "
    "grad f(y_k).",
    "Sutskever et al. 2013, equations 3 and 4, in the variables of the scheme",
    id="look_ahead",
    at_most=18.0,  # of the weights, gradients and velocity: of two steps, each as below
    note="two recorded steps that follow each other; the model holds y, and the velocity is not asked",
)
@judged(
    "velocity_roundings",
    "The velocity is mu times the last one plus the gradient with its L2 term.",
    "the form for networks",
    id="velocity",
    at_most=3.0,  # of the velocity and the gradient: a product of each and their sum, and the constants
)
@judged(
    "step_roundings",
    "The weights move along g + mu v, with the velocity of this step.",
    "the form for networks",
    id="update",
    at_most=9.0,  # those of the velocity and of the gradient, that is added twice
)
@judged(
    "terminal_roundings",
    "Momentum lengthens the steps along a gradient that stays 1 / (1 - mu) times.",
    "the geometric series",
    id="effective_rate",
    at_most=9.0,
    note="the recorded step again with that gradient's terminal velocity and no decay",
)
@judged(
    "rate",
    "The rate is 100 times AdamW's, as sgd_momentum's.",
    "the variant of this card",
    equals=100.0,
    tolerance=0.001,
)
@judged(
    "decay",
    "What decay takes off the weights in the long run, eta lambda / (1 - mu), stays the baseline's.",
    "the variant of this card",
    equals=1.0,
    tolerance=1e-06,
)
def probes(recording: Recording, own: NesterovAGD) -> Mapping[str, float]:
    """Includes those of :func:`theorem`; all others are of constant momentum. ``velocity_norm`` is shown beside."""
    scheme = theorem(*head_regression(recording.run), recording.run.recipe, own)
    if own.schedule == "convex":
        return scheme
    velocities = steps = 0.0
    stated = {"momentum": own.momentum, "dampening": 0.0}
    for trace in recording.traces:
        for move in recipes(recording, trace.update, **stated):
            velocities = max(velocities, velocity_off(move))
            steps = max(steps, step_off(move, pushed(move) + own.momentum * velocity(move)))
    return scheme | {
        "velocity_roundings": velocities,
        "step_roundings": steps,
        "look_ahead_roundings": max(
            look_ahead_off(recording, own, *pair)
            for pair in pairwise(recording.traces)
            if pair[1].step == pair[0].step + 1
        ),
        "terminal_roundings": terminal_off(recording, own.momentum),
        **strengths(recording, own.momentum),
    }


def look_ahead_off(recording: Recording, own: NesterovAGD, earlier: Trace, later: Trace) -> float:
    """Measures how far the weights are, in roundings, from x_k + mu (x_k - x_{k-1}), where x_k = y_k - eta g(y_k)
    and the model holds y_k: the velocity is not asked. Where eta changes, the older part of the difference changes
    with it."""
    farthest = 0.0
    before = {move.name: move for move in recipes(recording, earlier.update)}
    for move in recipes(recording, later.update):
        last, y = before[move.name], move.weights
        rate, last_rate = move.hyper["lr"], last.hyper["lr"]
        x, x_before = y - rate * pushed(move), last.weights - last_rate * pushed(last)
        expected = x + own.momentum * (x - y + rate / last_rate * (y - x_before))
        terms = last.weights, y, rate * move.gradient, rate * last.gradient, rate * move.before("velocity")
        farthest = max(farthest, off(move.after, expected, *terms))
    return farthest


def theorem(gram: Tensor, head: Tensor, recipe: Recipe, own: NesterovAGD) -> dict[str, float]:
    """Returns, of f(W) = tr((W - W*) G (W - W*)^T) / 2 from W = 0, with the rate 1/L and the schedule t_k:
    ``bound_used``, the largest share of the bound; ``accelerated_over_gradient_descent``, the last value over gradient
    descent's, where that is not 0; ``scheme_roundings``: how far the points are from those of Beck and Teboulle."""
    smoothness, squared_distance = torch.linalg.eigvalsh(gram)[-1].item(), head.square().sum().item()

    def value(point: Tensor) -> float:
        return 0.5 * ((point - head) @ gram * (point - head)).sum().item()

    weight = nn.Parameter(torch.zeros_like(head))
    group = {"params": [weight], "weight_decay": 0.0}
    optimizer = replace(own, schedule="convex").optimizer([group], replace(recipe, learning_rate=1 / smoothness))
    x = descended = torch.zeros_like(head)
    t, used, roundings = 1.0, 0.0, 0.0
    for k in range(1, GRADIENTS + 1):
        y = weight.detach().clone()
        gradient = (y - head) @ gram
        weight.grad = gradient.clone()
        optimizer.step()
        before, x = x, y - gradient / smoothness
        t, last = (1 + math.sqrt(1 + 4 * t**2)) / 2, t
        ahead = x + (last - 1) / t * (x - before)
        roundings = max(roundings, off(weight.detach(), ahead, x, before, y, gradient / smoothness))
        used = max(used, value(x) * (k + 1) ** 2 / (2 * smoothness * squared_distance))
        descended = descended - (descended - head) @ gram / smoothness
    seen = {"bound_used": used, "scheme_roundings": roundings}
    if not value(descended):  # so well conditioned that descent ends at the minimum to the last bit
        return seen
    return seen | {"accelerated_over_gradient_descent": value(x) / value(descended)}
