"""Has what samplers of examples share: one forward pass that gives a weighted loss and the scores. For ``is_gradnorm``
and ``rais``.

An example that is drawn with probability p in place of 1 / n stands for 1 / (n p) examples. So weighted, the mean of
what is drawn has the mean over all n as its expectation: loss, gradient and all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.loop.data import Batch
from suite.loop.run import Run
from techniques.importance_sampling.shared.error_norms import losses_and_scores


def importance_weights(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Returns 1 / (n p_i), float32 [batch], of the examples ``chosen`` (int64 [batch]) of n with these probabilities
    [n]."""
    return (len(probabilities) * probabilities[chosen]).reciprocal().float()


def scored_forward(run: Run, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the loss of :meth:`Run.forward` (scalar, float32), its examples weighted, and their scores, float32
    [batch].

    Without ``weights`` the loss is the same bits. A score takes no forward pass of its own.
    """
    if run.recipe.compile and not run.attachment.proven:
        run.attachment.rehearse(run, batch)
    with run.autocast():
        outputs = run.baseline.forward(run.forward_model, batch)
    losses, scores = losses_and_scores(run.baseline, outputs, batch)
    weighted = losses if weights is None else weights.to(losses.device) * losses
    return run.technique.loss(weighted.mean(), outputs, batch, run), scores


@torch.no_grad()
def scores_of(run: Run, batch: Batch) -> Tensor:
    """Computes the scores of a batch, float32 [batch], by a forward pass in evaluation, without dropout."""
    run.model.eval()
    with run.autocast():
        outputs = run.baseline.forward(run.forward_model, batch)
    run.model.train()
    return losses_and_scores(run.baseline, outputs, batch)[1]


def check_single(run: Run, id: str) -> None:
    """Raises ValueError under several ranks."""
    if run.world_size > 1:
        raise ValueError(f"{id} draws from the examples of one process: leave out what makes several ranks")
