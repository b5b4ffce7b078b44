"""What a recorded step shows of LAMB, in float64: Algorithm 2 read off the weights, the gradients and the moments."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.recording import Recording
from techniques.large_batch.lamb.technique import LambTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings, uneven_by_weights
from techniques.shared.moves import rate_over_the_baselines

TINY = 1e-100  # eps beside which every gradient is large in float64, and that keeps 0 / 0 at 0


def probes(recording: Recording, own: LambTechnique) -> Mapping[str, float]:
    """``length_error``: of a matrix's step, relative to its learning rate times phi(||w||), at the worst, beyond what
    rounding the weights adds; ``matrix_roundings``, ``vector_roundings``: how far weights are from where the algorithm
    takes them; ``moment_roundings``: from the two moving averages; ``moved_by_scale``: weights that move differently
    where gradients are scaled, a factor a layer; ``uneven_by_weights``: weights whose step is not in proportion to its
    layer's; ``rate``: the learning rate over AdamW's; ``beta1``, ``beta2``,
    ``eps``, ``decay``: the optimizer's."""
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
