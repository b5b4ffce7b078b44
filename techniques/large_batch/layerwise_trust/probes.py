"""Tells what a recorded step shows of layer-wise trust ratios, in float64: section 3.1 with momentum as the
direction."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.large_batch.layerwise_trust.technique import LayerwiseTrustTechnique
from techniques.shared.layer_moves import layers, moved_by_scale, roundings, sum_roundings, uneven_by_weights
from techniques.shared.moves import rate_over_the_baselines


@judged(
    "length_error",
    "A layer's step is the learning rate times phi of its weights' norm long.",
    "Section 3.1",
    id="step_length",
    at_most=1e-5,
    note="relative error at the worst matrix, beyond what rounding the weights adds",
)
@judged(
    "matrix_roundings",
    "It goes along the momentum plus the decayed weights, of which the norm is taken together.",
    "Section 3.1; Algorithm 1",
    id="matrix_step",
    at_most=4.0,  # of the weight, of the direction's terms, and of two norms
    note="base = momentum",
)
@judged(
    "vector_roundings",
    "Norms' scales and biases neither decay nor adapt.",
    "the authors' code: the exclusions of google-research/albert",
    id="vector_step",
    at_most=4.0,
)
@judged(
    "momentum_roundings",
    "The base direction is a moving average of the gradients, without the decay and without the ratio.",
    "Algorithm 1",
    id="momentum",
    at_most=4.0,
    note="base = momentum",
)
@judged(
    "moved_by_scale",
    "Without decay the step does not depend on the scale of any layer's gradients.",
    "Section 3.1",
    id="gradient_scale",
    note="weight decay 0; a power of 2 for each matrix, so to the bit",
)
@judged(
    "uneven_by_weights",
    "The step grows with its layer's weights in proportion: phi is the identity, and no ratio is capped.",
    "Section 3.1; phi(z) = z in the paper's experiments",
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
@judged("beta", "The momentum's beta is 0.9.", "Algorithm 1; section 4", equals=0.9, tolerance=1e-9)
@judged(
    "decay",
    "Matrices decay by 0.01, in the direction that is rescaled.",
    "Section 4, hyper-parameters",
    equals=0.01,
    tolerance=1e-9,
)
def probes(recording: Recording, own: LayerwiseTrustTechnique) -> Mapping[str, float]:
    """Roundings are of weights and momentum, from where the algorithm takes them; weights that move differently are
    counted. Another base than momentum is seen as what it is: not Algorithm 1."""
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
