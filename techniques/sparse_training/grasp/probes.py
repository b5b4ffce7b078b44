"""Checks what a short run shows of GraSP: its scores from the squared gradient norm itself, and the masks that
follow."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.sparse import pruned
from techniques.shared.sparse.connections import paths_of, pooled
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_training.grasp.technique import Grasp

SLACK = 2.0**-12  # of a weight times its tensor's largest product: a Hessian's sums and quotients, in float32


@judged(
    "off_count",
    "Exactly the wanted share of the connections stays, of all layers together.",
    "Algorithm 2",
    id="sparsity",
    note="a fifth of the blocks' weights, rounded",
)
@judged(
    "wrongly_kept",
    "The connections with the largest -w * Hg go: those whose removal would raise the gradient's norm most, or lower "
    "it least.",
    "Section 4, equation 8, algorithm 2",
    id="largest_go",
    note=(
        "from the derivative of the squared norm itself, in float64 up to the logits; scores that differ by rounding "
        "alone may change places"
    ),
)
@judged(
    "off_balance",
    "The batch has ten examples of each class.",
    "Section 5; samples_per_class of the authors' code",
    id="balanced",
    baselines=["vit"],
    note="or all of a class that has fewer",
)
@judged("off_initial", "What stays trains on from its initial weights.", "Algorithm 2", id="initial_weights")
@judged("topology_changed", "The connections are fixed before training and never change.", "Algorithm 2", id="fixed")
@judged(
    "dead",
    "Pruned weights are zero after every step, and get neither gradient nor momentum.",
    "Algorithm 2",
    id="pruned_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient.",
    "Algorithm 2",
    id="pruned_weights_stay_zero",
)
def probes(recording: Recording, own: Grasp) -> Mapping[str, float]:
    """Includes the invariants of :mod:`techniques.shared.sparse.pruned`. Connections and examples that are off are
    counted. For a claim, ``choosing_cost`` is in training steps."""
    if own.is_reference:
        return {}
    run = recording.run
    masks = {path: mask[:: own.block, :: own.block] for path, mask in pruned.masks_of(recording).items()}
    importance, slack = (
        {path: pooled(value, own.block) for path, value in every.items()} for every in importances(run, own)
    )
    return {
        "off_count": pruned.off_count(masks, round((1 - own.sparsity) * sum(mask.numel() for mask in masks.values()))),
        "wrongly_kept": pruned.wrongly_kept(masks, importance, slack),
        "off_balance": _off_balance(run, own),
        "choosing_cost": pruned.choosing_cost(recording, own),
        **pruned.invariants(recording, own, pruned.initial_parameters(run)),
    }


def importances(run: Run, own: Grasp) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Computes w times half the derivative of ||g||^2 in w, by layer: g of the loss at the temperature, in float64 up
    to the logits; and what float32 may be off."""
    model = pruned.double_model(run)
    weights = {path: model.get_parameter(f"{path}.weight") for path in paths_of(run)}
    norm = squared_gradient(run, own, model, list(weights.values()))
    halves = torch.autograd.grad(norm / 2, list(weights.values()))
    values = {path: (weight * half).detach() for (path, weight), half in zip(weights.items(), halves, strict=True)}
    slack = {
        path: SLACK * weight.detach().abs() * half.abs().max()
        for (path, weight), half in zip(weights.items(), halves, strict=True)
    }
    return values, slack


def squared_gradient(run: Run, own: Grasp, model: nn.Module, weights: list[nn.Parameter]) -> Tensor:
    """Computes ||g||^2 of these weights, differentiable."""
    batch: Batch = pruned.doubled(own.batch(run))
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        tempered = SimpleNamespace(logits=run.baseline.forward(model, batch).logits / own.temperature)
    loss = run.baseline.losses(tempered, batch).mean()
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum()


def _off_balance(run: Run, own: Grasp) -> int:
    if "labels" not in run.data.train.tensors:
        return 0
    there, chosen = run.data.train.tensors["labels"].tolist(), own.batch(run)["labels"].tolist()
    return sum(abs(chosen.count(label) - min(own.per_class, there.count(label))) for label in set(there))
