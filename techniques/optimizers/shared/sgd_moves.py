"""Tells where a recorded update of SGD with momentum should lead, in float64: for the probes of ``sgd_momentum`` and
``nesterov_agd``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Update
from techniques.shared.moves import Move, again, moves, off, over_the_baselines


def recipes(recording: Recording, update: Update, **hyper: Any) -> Iterator[Move]:
    """Yields the moves of an update, with the recipe's L2 regularisation, of matrices alone, and these
    hyper-parameters."""
    for move in moves(update, **hyper):
        decay = recording.run.recipe.weight_decay if move.weights.ndim >= 2 else 0.0
        yield replace(move, hyper={**move.hyper, "weight_decay": decay})


def pushed(move: Move) -> Tensor:
    """Returns the gradient with its L2 term."""
    return move.gradient + move.hyper["weight_decay"] * move.weights


def velocity(move: Move) -> Tensor:
    """Computes v = mu v + (1 - d) g; the first is g, without dampening."""
    if "velocity" not in move.begun:
        return pushed(move)
    return move.hyper["momentum"] * move.before("velocity") + (1 - move.hyper["dampening"]) * pushed(move)


def velocity_off(move: Move) -> float:
    """Measures how far the velocity is from :func:`velocity`, in roundings."""
    return off(move.state("velocity"), velocity(move), *_terms(move))


def step_off(move: Move, step: Tensor) -> float:
    """Measures how far the weights are from theta - eta ``step``, in roundings."""
    rate = move.hyper["lr"]
    return off(move.after, move.weights - rate * step, move.weights, *(rate * term for term in _terms(move)))


def _terms(move: Move) -> tuple[Tensor, ...]:
    return move.before("velocity"), move.gradient, move.hyper["weight_decay"] * move.weights


def terminal_off(recording: Recording, momentum: float) -> float:
    """Measures how far a step is, in roundings, from eta g / (1 - mu): with the velocity that a gradient which stays
    leads to, and no decay."""
    before = recording.trace.update.before
    state = {
        name: {**own, "velocity": before.gradients[name] / (1 - momentum)}
        for name, own in before.state.items()
        if name in before.gradients
    }
    hyper = {name: {**own, "weight_decay": 0.0} for name, own in before.hyper.items()}
    steps = moves(again(recording, replace(before, state=state, hyper=hyper)))
    return max(step_off(move, move.gradient / (1 - momentum)) for move in steps)


def strengths(recording: Recording, momentum: float) -> dict[str, float]:
    """Returns ``rate``, and ``decay``: what decay takes off the weights in the long run, eta lambda / (1 - mu), over
    the baseline's; ``velocity_norm``: of the last recorded step, over all parameters."""
    over = over_the_baselines(recording)
    if over:
        over["decay"] /= 1 - momentum
    velocities = [move.state("velocity").flatten() for move in moves(recording.trace.update)]
    norm = torch.cat(velocities).double().nan_to_num().norm().item()  # 0 without momentum
    return {**over, "velocity_norm": norm}
