"""Checks what a short run shows of SNIP: the switches' derivatives in float64, by switches, and the masks that
follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from suite.loop.data import mixed_seed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.sparse import pruned
from techniques.shared.sparse.connections import paths_of, pooled
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_training.snip.technique import Snip

SLACK = 2.0**-17  # of a weight times its tensor's largest gradient: 64 roundings of float32


@judged(
    "off_count",
    "Exactly kappa connections stay, of all layers together.",
    "Section 4, equation 6",
    id="sparsity",
    note="kappa is a fifth of the blocks' weights, rounded",
)
@judged(
    "wrongly_kept",
    "They are those with the highest |dL(c * w)/dc| at c = 1, over all layers.",
    "Section 4, equations 4 to 6",
    id="most_sensitive",
    note=(
        "differentiated by the switches themselves, in float64; sensitivities that differ by rounding alone may "
        "change places"
    ),
)
@judged("off_initial", "What stays trains on from its initial weights.", "Section 4, algorithm 1", id="initial_weights")
@judged(
    "topology_changed",
    "The connections are fixed before training and never change.",
    "Section 4, algorithm 1",
    id="fixed",
)
@judged(
    "dead",
    "Pruned weights are zero after every step, and get neither gradient nor momentum.",
    "Section 4, algorithm 1",
    id="pruned_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient.",
    "Section 4, algorithm 1",
    id="pruned_weights_stay_zero",
)
def probes(recording: Recording, own: Snip) -> Mapping[str, float]:
    """Includes the invariants of :mod:`techniques.shared.sparse.pruned`. Connections that are off are counted, blocks
    by the sums of their sensitivities. For a claim, ``choosing_cost`` is in training steps."""
    if own.is_reference:
        return {}
    run = recording.run
    masks = {path: mask[:: own.block, :: own.block] for path, mask in pruned.masks_of(recording).items()}
    sensitivity, slack = (
        {path: pooled(value, own.block) for path, value in every.items()} for every in sensitivities(recording)
    )
    return {
        "off_count": pruned.off_count(masks, round((1 - own.sparsity) * sum(mask.numel() for mask in masks.values()))),
        "wrongly_kept": pruned.wrongly_kept(masks, sensitivity, slack),
        "choosing_cost": pruned.choosing_cost(recording, own),
        **pruned.invariants(recording, own, pruned.initial_parameters(run)),
    }


def sensitivities(recording: Recording) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Computes |dL(c * w) / dc| at c = 1 by layer, float64, on the first batch; and what float32 may be off."""
    run = recording.run
    model = pruned.double_model(run)
    weights = {f"{path}.weight": model.get_parameter(f"{path}.weight").detach() for path in paths_of(run)}
    switches = {name: torch.ones_like(weight, requires_grad=True) for name, weight in weights.items()}
    batch = pruned.doubled(run.data.batch(mixed_seed(run.seed, 2), 0, run.recipe.batch_size)[0])
    switched = _Switched(model, {name: switches[name] * weight for name, weight in weights.items()})
    loss = run.baseline.losses(run.baseline.forward(switched, batch), batch).mean()
    derivatives = dict(zip(switches, torch.autograd.grad(loss, list(switches.values())), strict=True))
    sensitivity = {name.removesuffix(".weight"): derivative.abs() for name, derivative in derivatives.items()}
    slack = {}
    for path, value in sensitivity.items():
        weight = weights[f"{path}.weight"].abs()
        largest = (value / weight.clamp(min=1e-12)).max()  # gradient
        slack[path] = SLACK * weight * largest
    return sensitivity, slack


class _Switched(torch.nn.Module):
    """Wraps a model that computes with other weights."""

    def __init__(self, model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model, self.weights = model, dict(weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.model, self.weights, args, kwargs)
