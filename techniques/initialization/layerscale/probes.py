"""What recorded steps show of LayerScale, beside a plain model whose last layers of branches are multiplied by it.

diag(l) (W h + b) = (diag(l) W) h + diag(l) b: the plain model with rows so multiplied is the same function (equation
4), and the chain rule gives the gradients that the recorded step must have had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.model.anatomy import anatomy
from techniques.initialization.layerscale.technique import LayerScaleTechnique
from techniques.shared.branch_probes import added, otherwise_without_decay, own_names, scale_gradient_roundings
from techniques.shared.plain import plain_model

OF_ITS_BASELINES = True  # whose branches end in a linear layer each
INITIAL = ((18, 0.1), (24, 1e-5), (math.inf, 1e-6))  # section 2.2: up to how many blocks, and what


def records(run: Run, own: LayerScaleTechnique) -> bool:
    """The start, where scales have their initial value, and the middle, where each channel has its own."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: LayerScaleTechnique) -> Mapping[str, float]:
    """``added_per_branch_and_width``: parameters more than the plain model's; ``initial``: the scales' first values
    over the paper's, the one farthest from it; ``gradient_roundings``: of the middle step's gradients from those of
    the scaled plain model; ``decayed``: scales that move otherwise without weight decay; ``at_rest``: scales that did
    not move."""
    plain, first, trace = plain_model(recording), recording.traces[0], recording.trace
    stacks = anatomy(plain).stacks
    ends = {part: stack for stack in stacks for block in stack.blocks for part in block.branches}
    initial = [
        first.before.parameters[scale].double() / next(value for depth, value in INITIAL if stack.depth <= depth)
        for end, stack in ends.items()
        if (scale := f"{end.path}.scale") in first.before.parameters
    ]
    scales = own_names(plain, trace.before.parameters)
    return {
        "added_per_branch_and_width": added(plain, first.before.parameters)
        / sum(stack.width for stack in ends.values()),
        "initial": max(torch.cat([each.flatten() for each in initial]).tolist(), key=lambda value: abs(value - 1)),
        "gradient_roundings": scale_gradient_roundings(
            recording, trace, plain, {end: f"{end.path}.scale" for end in ends}
        ),
        "decayed": otherwise_without_decay(recording, trace, scales),
        "at_rest": sum(int((trace.update.moved(name) == 0).sum()) for name in scales),
    }
