"""Tells what recorded steps show of LARS, in float64: Algorithm 1 read off the weights, the gradients and the
momentum."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.large_batch.lars.technique import LarsTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings
from techniques.shared.moves import rate_over_the_baselines


def records(run: Run, own: LarsTechnique) -> bool:
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "longest_first_step",
    "A layer's first step is at most the learning rate times the trust coefficient times the weights' norm.",
    "Algorithm 1; equation 6",
    id="first_step",
    at_most=1.0,
    tolerance=2e-4,
    note="the run's first update; weights rounded after a step of some 4e-4 of their norm",
)
@judged(
    "shortest_first_step",
    "Of that it is ||g + beta w|| / (||g|| + beta ||w||): the norms are taken apart.",
    "Algorithm 1",
    id="first_step_length",
    equals=1.0,
    tolerance=2e-4,
    note="the shortest of all matrices, over the algorithm's; rounded as above",
)
@judged(
    "matrix_roundings",
    "The momentum of rescaled gradients is subtracted as it is.",
    "Algorithm 1",
    id="matrix_step",
    at_most=4.0,  # of the weight, of the step's terms, and of two norms
)
@judged(
    "momentum_roundings",
    "The learning rate and the ratio are inside the momentum: v = m v + gamma ratio (g + beta w).",
    "Algorithm 1",
    id="momentum_inside",
    at_most=4.0,  # of the terms, and of two norms
    note="in mid-run, where the learning rate changes from step to step",
)
@judged(
    "vector_roundings",
    "Norms' scales and biases neither decay nor adapt: they move as SGD's with momentum.",
    "MoCo v3's and MAE's lars.py",
    id="vector_step",
    at_most=4.0,
)
@judged(
    "moved_by_scale",
    "Without decay the step does not depend on the scale of any layer's gradients.",
    "Section 4",
    id="gradient_scale",
    note="weight decay 0; a power of 2 for each matrix, so to the bit",
)
@judged(
    "rate",
    "The learning rate is 800 times AdamW's.",
    "the grid at nano that the variant describes",
    equals=800.0,
    tolerance=1e-6,
)
@judged("momentum", "The momentum is 0.9.", "Section 5", id="paper_momentum", equals=0.9, tolerance=1e-9)
@judged("trust_coefficient", "The trust coefficient is 0.001.", "Section 5", equals=1e-3, tolerance=1e-9)
@judged("decay", "Matrices decay by 0.0005.", "Section 5", equals=5e-4, tolerance=1e-9)
def probes(recording: Recording, own: LarsTechnique) -> Mapping[str, float]:
    """``matrix_roundings``, ``vector_roundings`` and ``momentum_roundings`` are from where a step in mid-run is to take
    weights and momentum; the weights ``moved_by_scale`` are counted."""
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
    """Returns the shortest, in the length of the algorithm's, and the longest, in gamma eta ||w||. 0 where v was
    not."""
    shortest, longest = 1.0, 0.0
    for name, weights, gradient, hyper in layers(first.update):
        if weights.ndim >= 2 and weights.norm() > 0 and gradient.norm() > 0:
            decay = hyper["weight_decay"]
            moved = first.update.moved(name).norm() / (hyper["lr"] * hyper["trust_coefficient"] * weights.norm())
            whole = torch.norm(gradient + decay * weights) / (gradient.norm() + decay * weights.norm())
            shortest, longest = min(shortest, (moved / whole).item()), max(longest, moved.item())
    return shortest, longest
