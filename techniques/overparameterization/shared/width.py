"""Makes MLPs wider, and measures how far training takes them from where they began.

For ``overparam_convergence``, ``overparam_generalization`` and ``train_large_compress``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.pruning import mlp_neurons
from suite.model.widening import widen


def widened(model: nn.Module, run: Run, times: int) -> nn.Module:
    """Returns the model with ``times`` as many neurons in every MLP, drawn from the run's generator; in place."""
    if times > 1:
        for units in mlp_neurons(anatomy(model), partial(run.trial, model)):
            widen(model, units, times, run.generator)
    return model


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the matrices of all MLPs that train, by name."""
    paths = {part.path for block in anatomy(model).every_block for part in block.mlp_linears}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and parameter.requires_grad and any(name.startswith(f"{path}.") for path in paths)
    }


@torch.no_grad()
def distances(now: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Computes ||W - W_0||_F / ||W_0||_F of each matrix."""
    return {name: (now[name] - value).norm() / value.norm() for name, value in start.items()}
