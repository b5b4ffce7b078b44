"""Computes the score of an example: the norm of its loss's gradient in the last pre-activations, ||softmax(f) - y||_2.

Katharopoulos & Fleuret (arXiv 1803.00942, section 3.2) sample by it, since it bounds the norm of the whole gradient up
to a constant; Paul et al. (arXiv 2107.07075, definition 2.2) average it over networks and call it EL2N. For
``is_gradnorm``, ``rais`` and ``el2n``.

Nothing is asked of the targets: they are in the baseline's own losses. Where an example's loss is the mean over n
tokens, each token's gradient is 1/n of its own, and their norms add up to the mean over tokens.

A pass over the logits gives the cross-entropy. On a GPU the same pass gives the norm
(:mod:`techniques.importance_sampling.shared.error_norms_kernel`), so that a score costs nothing beside the loss.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from suite.loop.baseline import Baseline
from suite.loop.data import Batch

PLAIN = {"weight": None, "size_average": None, "reduce": None, "reduction": "mean", "label_smoothing": 0.0}
OURS = {**PLAIN, "reduction": "none"}


def losses_and_scores(baseline: Baseline, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Computes the loss and the score of each example, float32 [batch]: losses with the graph of the logits, where
    these have one, and the same bits as the baseline's own; scores without.

    Raises ValueError where the baseline's loss is no function of logits alone.
    """
    with torch.enable_grad():
        logits = outputs.logits
        logits = logits.float() if logits.requires_grad else logits.detach().float().requires_grad_()
        try:
            with OnePass(launchable(logits)) as rows:
                losses = baseline.losses(SimpleNamespace(logits=logits), batch)
        except AttributeError:
            raise ValueError(
                f"an example's score is the error of its predicted classes, and the loss of {baseline.id} is no "
                "function of logits alone; take a baseline that the card names"
            ) from None
        return losses, error_norms(losses, logits) if rows.losses is None else rows.scores(losses)


def error_norms(losses: Tensor, logits: Tensor) -> Tensor:
    """Computes ||softmax(f) - y||_2 of each example [batch], without knowing the targets, from per-example
    cross-entropies, whose graph stays.

    The gradient of a cross-entropy in its logits [batch, ..., classes] is softmax(f) - y.
    """
    (errors,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    norms = errors.float().norm(dim=-1)
    return norms.flatten(1).sum(1) if norms.ndim > 1 else norms


def launchable(logits: Tensor) -> bool:
    """Tells whether the kernel takes these logits. Loads Triton for CUDA tensors only; the compiler fuses by itself."""
    if is_compiling() or not logits.is_cuda:
        return False
    from suite.kernels import optimizer_parts

    return optimizer_parts.launchable([logits])


class OnePass(TorchFunctionMode):
    """While it is ``active``, a plain cross-entropy of each row is the kernel's, which gives the row's score, too."""

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active
        self.losses: Tensor | None = None  # of each row, and its score
        self.norms: Tensor | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.active and function is F.cross_entropy and len(args) == 2 and args[0].ndim == 2:
            settings = {**PLAIN, **kwargs}
            ignored = settings.pop("ignore_index", -100)
            if settings == OURS:
                self.losses, self.norms = ScoredCrossEntropy.apply(*args, ignored)
                return self.losses
        return function(*args, **kwargs)

    def scores(self, losses: Tensor) -> Tensor:
        """Returns the scores of the examples [batch], from their ``losses``: each row's norm as often as its loss is in
        them."""
        assert self.losses is not None and self.norms is not None
        (shares,) = torch.autograd.grad(losses.sum(), self.losses, retain_graph=True)
        return (shares.abs() * self.norms).view(len(losses), -1).sum(1)


class ScoredCrossEntropy(torch.autograd.Function):
    """Runs the kernel's two passes. ``apply(logits, targets, ignored)``: float32 losses and norms [rows]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
        from techniques.importance_sampling.shared import error_norms_kernel as kernel

        logits, targets = logits.contiguous(), targets.contiguous()
        losses, norms, levels = kernel.losses_and_norms(logits, targets, ignored)
        ctx.save_for_backward(logits, targets, levels)
        ctx.ignored = ignored
        ctx.mark_non_differentiable(norms)
        return losses, norms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        from techniques.importance_sampling.shared import error_norms_kernel as kernel

        logits, targets, levels = ctx.saved_tensors
        return kernel.gradients(of_losses.contiguous(), logits, targets, levels, ctx.ignored), None, None
