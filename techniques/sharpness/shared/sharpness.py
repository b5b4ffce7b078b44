"""Measures the sharpness of the place where a run ended: the Hessian's largest eigenvalue, the loss's rise along the
gradient.

Chen, Hsieh & Gong (arXiv 2106.01548), table 1, and Foret et al. (arXiv 2010.01412), section 4.2. Both depend on how the
weights are scaled (Dinh et al., ICML 2017, arXiv 1703.04933): compare them between runs of one model.

For the probes of ``vit_sam``, ``esam``, ``saf`` and ``saf_mesa``, which are to find flat places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.loop.run import Run
from techniques.sharpness.shared.ascent import ascend, restore

RADIUS = 0.2  # of the ascent, whatever a run's own: runs of different radii can be compared
LANCZOS_STEPS = 12


def largest_eigenvalue(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Computes the largest eigenvalue of a symmetric operator ``product`` [n] -> [n], from below, by ``steps`` Lanczos
    steps.

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
    """Returns v [n] -> H v [n] from ``gradients`` taken with ``create_graph=True`` (Pearlmutter, 1994)."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])

    def product(vector: Tensor) -> Tensor:
        columns = torch.autograd.grad(flat, parameters, vector, retain_graph=True, materialize_grads=True)
        return torch.cat([column.flatten() for column in columns])

    return product


def sharpness(run: Run) -> dict[str, float]:
    """Measures ``lambda_max``, the Hessian's, and ``ascent_rise``, the loss's at RADIUS along the gradient.

    Takes one training batch, in float32 without dropout. Leaves the run without gradients, and otherwise as it was.
    """
    examples, _ = run.data.batch(0, 0, run.recipe.batch_size)
    batch = {name: tensor.to(run.device) for name, tensor in examples.items()}
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    run.model.eval()
    with run.unreduced(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        loss = run.baseline.losses(run.baseline.forward(run.model, batch), batch).mean()
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        length = sum(p.numel() for p in parameters)
        start = torch.randn(length, generator=torch.Generator().manual_seed(0)).to(run.device)
        eigenvalue = largest_eigenvalue(hessian_product(gradients, parameters), start, LANCZOS_STEPS)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.detach().clone()
        weights = ascend(parameters, RADIUS)
        with torch.no_grad():
            risen = run.baseline.losses(run.baseline.forward(run.model, batch), batch).mean()
        restore(parameters, weights)
    run.optimizer.zero_grad(set_to_none=True)
    run.model.train()
    return {"lambda_max": eigenvalue.item(), "ascent_rise": (risen - loss).item()}
