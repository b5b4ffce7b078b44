"""What recorded steps show of LARS, in float64: Algorithm 1 read off the weights, the gradients and the momentum."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.large_batch.lars.technique import LarsTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings
from techniques.shared.moves import rate_over_the_baselines


def records(run: Run, own: LarsTechnique) -> bool:
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: LarsTechnique) -> Mapping[str, float]:
    """``longest_first_step``: of a matrix in the run's first update, in gamma eta ||w||; ``shortest_first_step``: of
    what the algorithm says that it is; ``matrix_roundings``, ``vector_roundings``, ``momentum_roundings``: how far
    weights and momentum are from where a step in mid-run is to take them; ``moved_by_scale``: weights of matrices that
    move differently, without decay, where gradients are scaled, a factor a layer; ``rate``: the learning rate over
    AdamW's; ``momentum``, ``trust_coefficient``, ``decay``: the optimizer's."""
    update = recording.trace.update
    worst = {"matrix_roundings": 0.0, "vector_roundings": 0.0, "momentum_roundings": 0.0}
    for name, weights, gradient, hyper in layers(update):
        matrix = weights.ndim >= 2
        decay, ratio = (hyper["weight_decay"], hyper["trust_coefficient"]) if matrix else (0.0, 1.0)
        length = gradient.norm() + decay * weights.norm()
        if matrix:
            ratio = ratio * weights.norm() / length if weights.norm() > 0 and gradient.norm() > 0 else 1.0
        fresh = hyper["lr"] * ratio * (gradient + decay * weights)
        carry = hyper["momentum"] * update.before.state[name]["momentum"].double()
        sums = sum_roundings(weights) if matrix else 0.0
        terms = carry.abs() + hyper["lr"] * ratio * (gradient.abs() + decay * weights.abs()) + sums * fresh.abs()
        kind = "matrix_roundings" if matrix else "vector_roundings"
        after = update.after.parameters[name]
        worst[kind] = max(worst[kind], roundings(after, weights - carry - fresh, weights.abs() + terms))
        momentum = update.after.state[name]["momentum"]
        worst["momentum_roundings"] = max(worst["momentum_roundings"], roundings(momentum, carry + fresh, terms))
    hypers = list(update.before.hyper.values())
    shortest, longest = _first_steps(recording.traces[0])
    return {
        **worst,
        "longest_first_step": longest,
        "shortest_first_step": shortest,
        "moved_by_scale": moved_by_scale(recording, {}, least_dims=2, weight_decay=0.0),
        **rate_over_the_baselines(recording),
        **{name: max(hyper[name] for hyper in hypers) for name in ("momentum", "trust_coefficient")},
        "decay": max(hyper["weight_decay"] for hyper in hypers),
    }


def _first_steps(first: Trace) -> tuple[float, float]:
    """The shortest, in the length of the algorithm's, and the longest, in gamma eta ||w||. 0 where v was not."""
    shortest, longest = 1.0, 0.0
    for name, weights, gradient, hyper in layers(first.update):
        if weights.ndim >= 2 and weights.norm() > 0 and gradient.norm() > 0:
            decay = hyper["weight_decay"]
            moved = first.update.moved(name).norm() / (hyper["lr"] * hyper["trust_coefficient"] * weights.norm())
            whole = torch.norm(gradient + decay * weights) / (gradient.norm() + decay * weights.norm())
            shortest, longest = min(shortest, (moved / whole).item()), max(longest, moved.item())
    return shortest, longest
