"""Fits logistic regression on the frozen features of a trained baseline: a convex problem on top of a Transformer.

    f(W) = mean over i of -log softmax(W z_i)[y_i] + ridge / 2 ||W||^2

Its Hessian lies between ridge and lambda_max(Z^T Z / n) / 2 + ridge (Böhning, "Multinomial logistic regression
algorithm", 1992), so that the constants of the theorems are known. Everything is float64.

For the studies of ``nesterov_agd`` and ``prox_grad_momentum``, which check their theorems on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.entries.jobs import run_of
from suite.record.job import Job, Setting

EXAMPLES = 600


@dataclass(frozen=True)
class LinearProbe:
    """Holds ``features`` float64 [examples, width], ``labels`` int64 [examples] in [0, ``classes``)."""

    features: Tensor
    labels: Tensor
    classes: int
    ridge: float = 0.0

    @property
    def start(self) -> Tensor:
        """Returns zero weights [classes, width]."""
        return torch.zeros(self.classes, self.features.shape[1], dtype=torch.float64)

    @property
    def smoothness(self) -> float:
        """Returns L: no curvature is larger."""
        gram = self.features.T @ self.features / len(self.features)
        return 0.5 * torch.linalg.eigvalsh(gram)[-1].item() + self.ridge

    def value(self, weight: Tensor) -> float:
        loss = F.cross_entropy(self.features @ weight.T, self.labels).item()
        return loss + 0.5 * self.ridge * weight.square().sum().item()

    def gradient(self, weight: Tensor) -> Tensor:
        residual = (self.features @ weight.T).softmax(-1)
        residual[torch.arange(len(self.labels)), self.labels] -= 1
        return residual.T @ self.features / len(self.labels) + self.ridge * weight

    def minimiser(self) -> Tensor:
        """Finds the minimum, by a method that has nothing to do with what is studied: limited-memory BFGS (scipy)."""
        import numpy
        from scipy.optimize import minimize

        shape = self.start.shape

        def value_and_gradient(flat: numpy.ndarray) -> tuple[float, numpy.ndarray]:
            weight = torch.from_numpy(flat.copy()).reshape(shape)
            return self.value(weight), self.gradient(weight).flatten().numpy()

        settings = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-10, "maxcor": 30}
        start = self.start.flatten().numpy()
        solution = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=settings)
        return torch.from_numpy(solution.x).reshape(shape)


@torch.no_grad()
def linear_probe(setting: Setting) -> LinearProbe:
    """Trains the baseline and takes its output layer's inputs as features, standardised, with a constant one added.

    Raises ValueError for a baseline whose examples have no single label.
    """
    run = run_of(Job(setting=setting))
    if "labels" not in run.data.train.tensors:
        raise ValueError(f"the study classifies examples, and those of {setting.baseline} have no label: use -b vit")
    with torch.enable_grad():
        run.train(run.recipe.steps)
    layer = run.anatomy.head[-1].module
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].cpu().double()))
    run.model.eval()
    indices = torch.arange(min(EXAMPLES, len(run.data.train)))
    batch = run.data.transform(run.data.train[indices], torch.Generator().manual_seed(0))
    run.baseline.forward(run.model, {name: tensor.to(run.device) for name, tensor in batch.items()})
    handle.remove()
    features = seen[-1]
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    labels = batch["labels"]
    return LinearProbe(features, labels, int(labels.max()) + 1)
