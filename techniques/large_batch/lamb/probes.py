"""Tells what a recorded step shows of LAMB, in float64: Algorithm 2 read off the weights, the gradients and the
moments."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.large_batch.lamb.technique import LambTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings, uneven_by_weights
from techniques.shared.moves import rate_over_the_baselines

TINY = 1e-100  # eps beside which every gradient is large in float64, and that keeps 0 / 0 at 0


@judged(
    "length_error",
    "A layer's step is exactly the learning rate times its weights' norm long.",
    "Algorithm 2",
    id="step_length",
    at_most=1e-5,
    note="relative error at the worst matrix, beyond what rounding the weights adds",
)
@judged(
    "matrix_roundings",
    "Along Adam's bias-corrected ratio plus the decayed weights, of which the norm is taken together.",
    "Algorithm 2",
    id="matrix_step",
    at_most=4.0,  # of the weight, of the direction's terms, and of two norms
)
@judged(
    "vector_roundings",
    "Norms' scales and biases neither decay nor adapt: they move as Adam's.",
    "the authors' code: the exclusions of google-research/albert",
    id="vector_step",
    at_most=8.0,  # of the weight and of the direction's terms
)
@judged(
    "moment_roundings",
    "Both moments are moving averages of the gradients and of their squares, without the decay.",
    "Algorithm 2",
    id="moments",
    at_most=4.0,
)
@judged(
    "moved_by_scale",
    "The step does not depend on the scale of any layer's gradients.",
    "Section 3; Algorithm 2",
    id="gradient_scale",
    note=(
        "the limit of a small eps, of which 1e-100 is one; in float64, where no square underflows; a power of 2 for "
        "each layer, so to the bit"
    ),
)
@judged(
    "uneven_by_weights",
    "The step grows with its layer's weights in proportion: phi is the identity, and no ratio is capped.",
    "Algorithm 2; phi(z) = z in the paper's experiments",
    id="weight_scale",
    note="without decay; weights 4096 times as large and as small, so to the bit",
)
@judged(
    "rate",
    "The learning rate is 16 times AdamW's.",
    "the grid at nano that the variant describes",
    equals=16.0,
    tolerance=1e-6,
)
@judged("beta1", "beta1 is 0.9.", "Section 4, hyper-parameters", id="first_beta", equals=0.9, tolerance=1e-9)
@judged("beta2", "beta2 is 0.999.", "Section 4, hyper-parameters", id="second_beta", equals=0.999, tolerance=1e-9)
@judged("eps", "eps is 1e-6, a hundred times AdamW's.", "Section 4, hyper-parameters", equals=1e-6, tolerance=1e-6)
@judged(
    "decay",
    "Matrices decay by 0.01, in the direction that is rescaled.",
    "Section 4, hyper-parameters",
    equals=0.01,
    tolerance=1e-9,
)
def probes(recording: Recording, own: LambTechnique) -> Mapping[str, float]:
    """``matrix_roundings`` and ``vector_roundings`` are of the weights, from where the algorithm takes them; those that
    are moved differently are counted, where gradients are scaled by a factor a layer."""
    update = recording.trace.update
    worst = {"length_error": 0.0, "matrix_roundings": 0.0, "vector_roundings": 0.0, "moment_roundings": 0.0}
    for name, weights, gradient, hyper in layers(update):
        (beta1, beta2), rate, matrix = hyper["betas"], hyper["lr"], weights.ndim >= 2
        before, after = update.before.state[name], update.after.state[name]
        step, m, v = int(before["step"]) + 1, before["first_moment"].double(), before["second_moment"].double()
        parts = beta1 * m, (1 - beta1) * gradient
        first, second = parts[0] + parts[1], beta2 * v + (1 - beta2) * gradient**2
        sizes = parts[0].abs() + parts[1].abs()
        worst["moment_roundings"] = max(
            worst["moment_roundings"],
            roundings(after["first_moment"], first, sizes),
            roundings(after["second_moment"], second, second),
        )
        scale = (1 - beta1**step) * ((second / (1 - beta2**step)).sqrt() + hyper["eps"])
        decay = hyper["weight_decay"] if matrix else 0.0
        direction, terms = first / scale + decay * weights, sizes / scale + decay * weights.abs()
        length = rate
        if matrix and weights.norm() > 0 and direction.norm() > 0:
            length = rate * weights.norm().clamp(own.phi_low, own.phi_high) / direction.norm()
            rounded = torch.finfo(gradient.dtype).eps * weights.norm() / 2  # what rounding the weights can add
            off = ((update.moved(name).norm() - length * direction.norm()).abs() - rounded).clamp(min=0)
            worst["length_error"] = max(worst["length_error"], (off / (length * direction.norm())).item())
        kind = "matrix_roundings" if matrix else "vector_roundings"
        units = weights.abs() + length * (terms + direction.abs() * (sum_roundings(weights) if matrix else 0.0))
        moved = roundings(update.after.parameters[name], weights - length * direction, units)
        worst[kind] = max(worst[kind], moved)
    hypers = list(update.before.hyper.values())
    return {
        **worst,
        "moved_by_scale": moved_by_scale(recording, {"first_moment": 1, "second_moment": 2}, eps=TINY),
        "uneven_by_weights": uneven_by_weights(recording, weight_decay=0.0),
        **rate_over_the_baselines(recording),
        "beta1": max(hyper["betas"][0] for hyper in hypers),
        "beta2": max(hyper["betas"][1] for hyper in hypers),
        "eps": max(hyper["eps"] for hyper in hypers),
        "decay": max(hyper["weight_decay"] for hyper in hypers),
    }
