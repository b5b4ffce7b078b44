"""Poses a convex problem with a known minimum on top of a trained network, on which theorems about optimizers can be
checked.

For the probes of ``nesterov_agd``, which states a bound for convex functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.model.anatomy import weight_matrix

ROWS, OUTPUTS = 512, 64  # at most, of the features and of the head


@torch.no_grad()
def head_regression(run: Run) -> tuple[Tensor, Tensor]:
    """Returns a convex problem of the frozen model: to find its output layer again from its features, by least squares.

    Returns Z^T Z / n [width, width] of the features Z that the layer reads on a batch, and its weight W*
    [outputs, width], both float64. f(W) = tr((W - W*) Z^T Z (W - W*)^T) / 2n has the minimum 0 at W*, for certain.
    """
    layer = run.anatomy.head[-1].module
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    batch, _ = run.next_batch()
    run.model.eval()
    try:
        run.baseline.forward(run.model, batch)
    finally:
        handle.remove()
        run.model.train()
    features = seen[-1].flatten(0, -2)[:ROWS].double()
    return features.T @ features / len(features), weight_matrix(layer)[:OUTPUTS].double()
