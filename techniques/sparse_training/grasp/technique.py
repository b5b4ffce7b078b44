"""Implements GraSP: prune once, before training, so that the gradient flows on through what is left.

Wang, Zhang & Grosse, "Picking Winning Tickets Before Training by Preserving Gradient Flow" (ICLR 2020, arXiv
2002.07376), section 4, equation 8, algorithms 1 and 2: to first order, a perturbation d of the weights changes the
squared norm of the gradient g by 2 d^T H g. Removing weight w is d = -w, so that

    S = -w * H g          the connections with the largest S go: without them the gradient's norm falls least, or rises

The logits are divided by a temperature, so that the loss is nearly flat in them, and errors of the untrained network's
predictions count little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.loop.data import Batch, generator, mixed_seed
from suite.loop.run import Run
from techniques.shared.sparse.saliency import PrunedAtStart, first_batch


def hessian_gradient(loss: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Computes H g of each weight, in its shape, by differentiating <g, stop(g)> (algorithm 1; Pearlmutter, 1994)."""
    gradients = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
    product = torch.stack([(gradient * gradient.detach()).sum() for gradient in gradients]).sum()
    return list(torch.autograd.grad(product, weights, materialize_grads=True))


def scores(weights: Sequence[Tensor], products: Sequence[Tensor]) -> list[Tensor]:
    """Computes S = -w * H g (equation 8): by how much the squared gradient norm rises, halved, if the weight goes."""
    return [-weight.detach() * product for weight, product in zip(weights, products, strict=True)]


@dataclass
class Grasp(PrunedAtStart):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    Where examples have classes, the batch has ``per_class`` of each, or all; else it is the run's first.
    """

    temperature: float = 200.0
    per_class: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature divides the logits and must be positive, not {self.temperature}")
        if self.per_class < 1:
            raise ValueError(f"per_class is the number of examples of each class, 1 or more, not {self.per_class}")

    def importance(self, model: nn.Module, weights: list[nn.Parameter], run: Run) -> list[Tensor]:
        batch = self.batch(run)
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            logits = run.baseline.forward(model, batch).logits
            try:
                losses = run.baseline.losses(SimpleNamespace(logits=logits / self.temperature), batch)
            except AttributeError:
                raise ValueError(
                    f"grasp divides the logits of classes by a temperature, and the loss of {run.baseline.id} is no "
                    "function of logits alone; measure it on a baseline that its card names"
                ) from None
            products = hessian_gradient(losses.mean(), weights)
        return [-score for score in scores(weights, products)]

    def batch(self, run: Run) -> Batch:
        classes = run.data.train.tensors.get("labels")
        if classes is None:
            return first_batch(run)
        order = torch.randperm(len(classes), generator=generator(run.seed, 5))
        chosen = torch.cat([order[classes[order] == label][: self.per_class] for label in classes.unique()])
        examples = run.data.transform(run.data.train[chosen], generator(mixed_seed(run.seed, 5), 1))
        return {name: tensor.to(run.device) for name, tensor in examples.items()}
