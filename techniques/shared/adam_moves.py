"""Checks what recorded steps show of Adam's statistics, with either decay: for the probes of ``adam`` and ``adamw``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.moves import Move, different, moves, off, scaled

TIMES = 64.0
POWERS = {"first_moment": 1, "second_moment": 2}


def first_and_middle(run: Run) -> bool:
    """Selects the steps to record: the first, which shows the bias corrections alone, and the one in the middle."""
    return run.step in (0, run.recipe.steps // 2)


def recipes(recording: Recording, trace: Trace) -> Iterator[Move]:
    """Yields the moves of a step, with the recipe's hyper-parameters of Adam."""
    recipe = recording.run.recipe
    return moves(trace.update, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


def moments_off(move: Move, l2: float = 0.0) -> float:
    """Computes how far the moments are, in roundings, from the moving averages of g + l2 theta and of its square."""
    beta1, beta2 = move.hyper["betas"]
    first, second = move.before("first_moment"), move.before("second_moment")
    g, terms = move.gradient + l2 * move.weights, move.gradient.abs() + l2 * move.weights.abs()
    return max(
        off(move.state("first_moment"), beta1 * first + (1 - beta1) * g, first, terms),
        off(
            move.state("second_moment"),
            beta2 * second + (1 - beta2) * g.square(),
            second,
            (1 - beta2) * terms.square(),
        ),
    )


def direction(move: Move, steps: float) -> Tensor:
    """Computes m_hat / (sqrt(v_hat) + eps) of the moments after step number ``steps``, from 1."""
    beta1, beta2 = move.hyper["betas"]
    first, second = move.state("first_moment").double(), move.state("second_moment").double()
    return first / (1 - beta1**steps) / ((second / (1 - beta2**steps)).sqrt() + move.hyper["eps"])


def in_rates(trace: Trace) -> Tensor:
    """Computes how far each coordinate moved at least, decoupled decay aside, in learning rates: what the weight's own
    rounding could have added is taken off."""
    by_weight = []
    for move in moves(trace.update):
        decayed = move.weights * (1 - move.hyper["lr"] * _decoupled(move))
        rounding = torch.finfo(move.after.dtype).eps * (decayed.abs() + move.hyper["lr"])
        step = (move.after.double() - decayed).abs() - 4 * rounding
        by_weight.append((step.clamp(min=0) / move.hyper["lr"]).flatten())
    return torch.cat(by_weight)


def _decoupled(move: Move) -> float:
    return float(move.hyper["weight_decay"]) if move.hyper.get("decay") != "coupled" else 0.0


def bounds(recording: Recording) -> Mapping[str, float]:
    """Computes ``largest_first_step`` of a coordinate, in learning rates; the largest of the step in the middle over
    the paper's bound (section 2.1), ``step_over_bound``, and over that of Cauchy and Schwarz,
    ``step_over_every_bound``, which no sequence of gradients exceeds; ``step_rms``: of that step, in learning rates."""
    beta1, beta2 = recording.run.recipe.beta1, recording.run.recipe.beta2
    first, middle = in_rates(recording.traces[0]), in_rates(recording.trace)
    largest = middle.max().item()
    return {
        "largest_first_step": first.max().item(),
        "step_over_bound": largest / max(1.0, (1 - beta1) / math.sqrt(1 - beta2)),
        "step_over_every_bound": largest / cauchy_schwarz(beta1, beta2, recording.trace.step + 1),
        "step_rms": middle.square().mean().sqrt().item(),
    }


def cauchy_schwarz(beta1: float, beta2: float, steps: int) -> float:
    """Computes |m_hat| / sqrt(v_hat) at most: sqrt(sum w_i^2 / u_i), where m_hat = sum w_i g_i and v_hat = sum u_i
    g_i^2."""
    ratio, mean, square = beta1**2 / beta2, (1 - beta1) / (1 - beta1**steps), (1 - beta2) / (1 - beta2**steps)
    return math.sqrt(mean**2 / square * sum(ratio**age for age in range(steps)))


def moved_by_scale(recording: Recording, **hyper: float) -> int:
    """Counts the weights that gradients and eps TIMES as large move differently, under these hyper-parameters."""
    before = recording.trace.update.before
    plain = replace(before, hyper={name: {**own, **hyper} for name, own in before.hyper.items()})
    eps = TIMES * recording.run.recipe.eps
    return different(recording.replayed(scaled(before, TIMES, POWERS, eps=eps, **hyper)), recording.replayed(plain))
