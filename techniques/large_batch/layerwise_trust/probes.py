"""What a recorded step shows of layer-wise trust ratios, in float64: section 3.1 with momentum as the direction."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.recording import Recording
from techniques.large_batch.layerwise_trust.technique import LayerwiseTrustTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings, uneven_by_weights
from techniques.shared.moves import rate_over_the_baselines


def probes(recording: Recording, own: LayerwiseTrustTechnique) -> Mapping[str, float]:
    """``length_error``: of a matrix's step, relative to its learning rate times phi(||w||), at the worst, beyond what
    rounding the weights adds; ``matrix_roundings``, ``vector_roundings``, ``momentum_roundings``: how far weights and
    momentum are from where the algorithm takes them; ``moved_by_scale``: weights of matrices that move differently,
    without decay, where gradients are scaled, a factor a layer; ``uneven_by_weights``: weights whose step is not in
    proportion to its layer's; ``rate``: the learning rate over AdamW's; ``decay``, ``beta``: the optimizer's.

    Another base than momentum is seen as what it is: not Algorithm 1.
    """
    update = recording.trace.update
    names = ("length_error", "matrix_roundings", "vector_roundings", "momentum_roundings")
    worst = dict.fromkeys(names, 0.0)
    for name, weights, gradient, hyper in layers(update):
        beta, rate, matrix = hyper["betas"][0], hyper["lr"], weights.ndim >= 2
        parts = beta * update.before.state[name]["first_moment"].double(), (1 - beta) * gradient
        momentum, sizes = parts[0] + parts[1], parts[0].abs() + parts[1].abs()
        error = roundings(update.after.state[name]["first_moment"], momentum, sizes)
        worst["momentum_roundings"] = max(worst["momentum_roundings"], error)
        decay = hyper["weight_decay"] if matrix else 0.0
        direction, terms, factor = momentum + decay * weights, sizes + decay * weights.abs(), rate
        if matrix and weights.norm() > 0 and direction.norm() > 0:
            length = rate * weights.norm().clamp(own.phi_low, own.phi_high)
            factor = length / direction.norm()
            terms = terms + sum_roundings(weights) * direction.abs()
            rounded = torch.finfo(gradient.dtype).eps * weights.norm() / 2  # what rounding the weights can add
            off = ((update.moved(name).norm() - length).abs() - rounded).clamp(min=0) / length
            worst["length_error"] = max(worst["length_error"], off.item())
        kind = "matrix_roundings" if matrix else "vector_roundings"
        after = update.after.parameters[name]
        moved = roundings(after, weights - factor * direction, weights.abs() + factor * terms)
        worst[kind] = max(worst[kind], moved)
    hypers = list(update.before.hyper.values())
    state = {"first_moment": 1, "second_moment": 2}
    return {
        **worst,
        "moved_by_scale": moved_by_scale(recording, state, least_dims=2, weight_decay=0.0),
        "uneven_by_weights": uneven_by_weights(recording, weight_decay=0.0),
        **rate_over_the_baselines(recording),
        "beta": max(hyper["betas"][0] for hyper in hypers),
        "decay": max(hyper["weight_decay"] for hyper in hypers),
    }
