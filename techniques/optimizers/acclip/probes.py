"""Tells what recorded steps show of ACClip, in float64: Algorithm 2 read off the weights and the gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.optimizers.acclip.technique import ACClipTechnique
from techniques.shared.moves import Move, again, moves, off, over_the_baselines, scaled

SQUARES = 2.0  # the other end of alpha's range: there a threshold's power is not itself
OUTLIER = 2.0**20


def records(run: Run, own: ACClipTechnique) -> bool:
    """Tells whether it is the first step, whose momentum and threshold begin at zero, or the one in the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "state_roundings",
    "Momentum and tau^alpha are moving averages of the gradient and of the power alpha of its size.",
    "Algorithm 2",
    id="averages",
    at_most=4.0,
)
@judged(
    "step_roundings",
    "Each coordinate of the momentum, as it is after the step's gradient, is clipped to its threshold, and nothing "
    "else is.",
    "Algorithm 2",
    id="update",
    at_most=8.0,  # of the weight, the momentum and the gradient: fifteen operations, each wrong by half a unit
)
@judged(
    "squares_roundings",
    "What the momentum is compared with is the root of the average that is kept.",
    "Algorithm 2, with tau^alpha on the left",
    id="root",
    at_most=8.0,
    note="the recorded steps again with alpha = 2: with 1 both are one",
)
@judged(
    "outlier_roundings",
    "However large a coordinate's gradient, it moves no further than its threshold.",
    "Algorithm 2; section 3 on why",
    id="outlier",
    at_most=5.0,
    note="the recorded steps again with gradients 2^20 times as large, decay aside",
)
@judged(
    "touched",
    "The norm of the gradient is not clipped before: the update reads what the backward pass gave, to the bit.",
    "Algorithm 2",
    id="norm",
)
@judged("rate", "The rate is 300 times AdamW's.", "the grid at nano of this card", equals=300.0, tolerance=0.001)
@judged(
    "decay",
    "The strength of decay, its product with the rate, stays the baseline's.",
    "the variant of this card",
    equals=1.0,
    tolerance=1e-06,
)
def probes(recording: Recording, own: ACClipTechnique) -> Mapping[str, float]:
    """Gradients that were ``touched`` are counted. ``clipped_share`` of the coordinates and ``step_rms`` in learning
    rates, of the last recorded step, are shown beside. ``outlier_roundings`` is how far beyond its threshold a
    coordinate goes whose gradient is OUTLIER times as large."""
    state = step = squares = outlier = 0.0
    touched = 0
    stated = {"betas": (own.beta1, own.beta2), "eps": own.eps, "alpha": own.alpha}
    for trace in recording.traces:
        before, backward = trace.update.before, trace.of("backward")[0].gradients
        touched += sum(int((gradient != backward[name]).sum()) for name, gradient in before.gradients.items())
        for move in moves(trace.update, **stated):
            m, power = averages(move)
            terms = move.before("momentum"), move.gradient
            state = max(state, off(move.state("momentum"), m, *terms), off(move.state("power"), power, power))
            step = max(step, step_off(move))
        two = again(recording, scaled(before, 1.0, {}, alpha=SQUARES))
        squares = max(squares, *(step_off(move) for move in moves(two, **stated | {"alpha": SQUARES})))
        large = again(recording, scaled(before, OUTLIER, {}))
        outlier = max(outlier, *(beyond(move) for move in moves(large, **stated)))
    ratios = [(direction(move) / averages(move)[0]).nan_to_num(1.0).flatten() for move in moves(trace.update, **stated)]
    directions = torch.cat([direction(move).flatten() for move in moves(trace.update, **stated)])
    return {
        "state_roundings": state,
        "step_roundings": step,
        "squares_roundings": squares,
        "outlier_roundings": outlier,
        "touched": touched,
        "clipped_share": (torch.cat(ratios) < 1).double().mean().item(),
        "step_rms": directions.square().mean().sqrt().item(),
        **over_the_baselines(recording),
    }


def averages(move: Move) -> tuple[Tensor, Tensor]:
    """Returns the momentum and tau^alpha after the update."""
    beta1, beta2 = move.hyper["betas"]
    m = beta1 * move.before("momentum") + (1 - beta1) * move.gradient
    return m, beta2 * move.before("power") + (1 - beta2) * move.gradient.abs() ** move.hyper["alpha"]


def threshold(move: Move) -> Tensor:
    """Returns tau, a root of what is kept."""
    return averages(move)[1] ** (1 / move.hyper["alpha"])


def direction(move: Move) -> Tensor:
    """Computes min(tau / (|m| + eps), 1) m."""
    m = averages(move)[0]
    return torch.clamp(threshold(move) / (m.abs() + move.hyper["eps"]), max=1) * m


def decayed(move: Move) -> Tensor:
    """Returns the weights with their decay, which is not clipped."""
    return move.weights * (1 - move.hyper["lr"] * move.hyper["weight_decay"])


def step_off(move: Move) -> float:
    """Measures how far the weights are from where Algorithm 2 leads."""
    rate = move.hyper["lr"]
    return off(
        move.after,
        decayed(move) - rate * direction(move),
        move.weights,
        rate * move.before("momentum"),
        rate * move.gradient,
    )


def beyond(move: Move) -> float:
    """Measures how much further than its threshold a coordinate went."""
    rate, tau = move.hyper["lr"], threshold(move)
    went = (decayed(move) - move.after.double()) / rate
    return off(move.after, decayed(move) - rate * went.clamp(-tau, tau), move.weights, rate * tau)
