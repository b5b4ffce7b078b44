"""SAM on a vision transformer trained from scratch without strong augmentation, and the flatness that it is to bring.

Chen, Hsieh & Gong, "When Vision Transformers Outperform ResNets without Pre-training or Strong Data Augmentations"
(ICLR 2022, arXiv 2106.01548): the update is SAM's over AdamW, with a larger ball than for convolutional networks. Their
explanation is measured at the end of the run: the Hessian's largest eigenvalue falls, and fewer units of the first MLPs
are active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.anatomy import Block
from suite.run import Run
from techniques.sharpness.sam.technique import Sam, ascend, restore

RADIUS = 0.2  # of the ascent probe, whatever the rho of the run: runs of different rho can be compared
LANCZOS_STEPS = 12


def largest_eigenvalue(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """The largest eigenvalue of a symmetric operator ``product`` [n] -> [n], from below, by ``steps`` Lanczos steps.

    Three vectors are kept: the basis is not orthogonalised again, which repeats converged eigenvalues and leaves the
    largest as it is (Paige, 1972). ``start`` [n] must not be zero.
    """
    vector, previous = start / start.norm(), torch.zeros_like(start)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(steps):
        image = product(vector)
        if beside:
            image = image - beside[-1] * previous
        diagonal.append(image.dot(vector))
        image = image - diagonal[-1] * vector
        beside.append(image.norm())
        if beside[-1] <= 10 * torch.finfo(start.dtype).eps * diagonal[0].abs():  # the space is exhausted
            break
        previous, vector = vector, image / beside[-1]
    matrix = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        sides = torch.stack(beside[: len(diagonal) - 1])
        matrix += torch.diag(sides, 1) + torch.diag(sides, -1)
    return torch.linalg.eigvalsh(matrix.double())[-1]


def hessian_product(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """v [n] -> H v [n] from ``gradients`` taken with ``create_graph=True`` (Pearlmutter, 1994)."""
    flat = torch.cat([each.flatten() for each in gradients])

    def product(vector: Tensor) -> Tensor:
        columns = torch.autograd.grad(flat, parameters, vector, retain_graph=True, materialize_grads=True)
        return torch.cat([each.flatten() for each in columns])

    return product


@contextmanager
def active_shares(blocks: Sequence[Block]) -> Iterator[list[float]]:
    """While active, every forward pass adds one number a block: the share of its hidden MLP units above zero.

    GELU and ReLU are positive exactly where what goes in is, so the first MLP layer's output tells.
    """
    shares: list[float] = []

    def count(_: nn.Module, __: object, out: Tensor) -> None:
        shares.append((out > 0).float().mean().item())

    handles = [block.mlp_linears[0].module.register_forward_hook(count) for block in blocks]
    try:
        yield shares
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class VitSam(Sam):
    """SAM with the paper's radius for ViT-B/16; a rho of 0 is the reference with the same probes."""

    rho: float = 0.2

    def probes(self, run: Run) -> Mapping[str, float]:
        """SAM's own; and on one training batch, in float32 without dropout: ``lambda_max`` of the Hessian, the rise of
        the loss ``ascent_rise`` at RADIUS along the gradient, ``active_share`` of hidden MLP units in all blocks and
        ``active_share_first`` in the first quarter of them."""
        examples, _ = run.data.batch(0, 0, run.recipe.batch_size)
        batch = {name: tensor.to(run.device) for name, tensor in examples.items()}
        parameters = [p for p in run.model.parameters() if p.requires_grad]
        unreduced = getattr(run.model, "no_sync", nullcontext)  # a data-parallel model would wait for its all-reduce
        found = dict(super().probes(run))
        run.model.eval()
        with unreduced(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            with active_shares(run.anatomy.blocks) as shares:
                loss = run.baseline.losses(run.baseline.forward(run.model, batch), batch).mean()
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            length = sum(p.numel() for p in parameters)
            start = torch.randn(length, generator=torch.Generator().manual_seed(0)).to(run.device)
            eigenvalue = largest_eigenvalue(hessian_product(gradients, parameters), start, LANCZOS_STEPS)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.detach().clone()
            copies = ascend(parameters, RADIUS)
            with torch.no_grad():
                risen = run.baseline.losses(run.baseline.forward(run.model, batch), batch).mean()
            restore(parameters, copies)
        run.optimizer.zero_grad(set_to_none=True)
        run.model.train()
        first = shares[: max(1, len(shares) // 4)]
        return found | {
            "lambda_max": eigenvalue.item(),
            "ascent_rise": (risen - loss).item(),
            "active_share": sum(shares) / len(shares),
            "active_share_first": sum(first) / len(first),
        }
