"""What recorded steps show of LayerScale, beside a plain model whose last layers of branches are multiplied by it.

diag(l) (W h + b) = (diag(l) W) h + diag(l) b: the plain model with rows so multiplied is the same function (equation
4), and the chain rule gives the gradients that the recorded step must have had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.contract.trace import Trace
from suite.model.anatomy import Part, anatomy, weight_matrix
from techniques.initialization.layerscale.technique import LayerScaleTechnique
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, names_in, plain_model

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
    count = sum(each.numel() for each in first.before.parameters.values()) - sum(p.numel() for p in plain.parameters())
    initial = [
        first.before.parameters[scale].double() / next(value for depth, value in INITIAL if stack.depth <= depth)
        for end, stack in ends.items()
        if (scale := f"{end.path}.scale") in first.before.parameters
    ]
    before, after = trace.update.before, trace.update.after
    scales = sorted(before.parameters.keys() - set(names_in(plain, before.parameters).values()))
    undecayed = {name: {**hyper, "weight_decay": 0.0} for name, hyper in before.hyper.items()}
    moved = recording.replayed(replace(before, hyper=undecayed))
    return {
        "added_per_branch_and_width": count / sum(stack.width for stack in ends.values()),
        "initial": max(torch.cat([each.flatten() for each in initial]).tolist(), key=lambda value: abs(value - 1)),
        "gradient_roundings": _gradient_roundings(recording, trace, plain, list(ends)),
        "decayed": sum(int((moved[name] != after.parameters[name]).sum()) for name in scales),
        "at_rest": sum(int((trace.update.moved(name) == 0).sum()) for name in scales),
    }


def _gradient_roundings(recording: Recording, trace: Trace, plain: nn.Module, ends: list[Part]) -> float:
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    unscaled = {name: each.detach().double().clone() for name, each in filled(plain, values).named_parameters()}
    scales = {end: values.get(f"{end.path}.scale", torch.ones(())).double().flatten() for end in ends}
    with torch.no_grad():
        for end, scale in scales.items():
            weight_matrix(end.module).mul_(scale[:, None])
            if isinstance(end.module.bias, Tensor):
                end.module.bias.mul_(scale)
    gradients = gradients_of(recording, trace, plain)
    of_scales: dict[str, Tensor] = {}
    for end, scale in scales.items():
        rows, bias = matrix_gradient(plain, end.path, gradients), f"{end.path}.bias"
        of_scale = (rows * matrix_gradient(plain, end.path, unscaled)).sum(1)
        rows.mul_(scale[:, None])
        if bias in gradients:
            of_scale += gradients[bias] * unscaled[bias]
            gradients[bias].mul_(scale)
        of_scales[f"{end.path}.scale"] = of_scale
    expected = {theirs: gradients[name] for name, theirs in names_in(plain, ours).items()}
    same = {name: each for name, each in of_scales.items() if name in ours and ours[name].numel() == each.numel()}
    return apart(ours, expected | {name: each.reshape(ours[name].shape) for name, each in same.items()})
