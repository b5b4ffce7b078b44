"""Tells what recorded steps show of LayerScale, beside a plain model whose last layers of branches are multiplied by
it.

diag(l) (W h + b) = (diag(l) W) h + diag(l) b: the plain model with rows so multiplied is the same function (equation
4), and the chain rule gives the gradients that the recorded step must have had. What the blocks do at the start, or
would at smaller scales, is read off one pass of the run's model, in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import Part, anatomy, weight_matrix
from suite.model.calls import in_precision
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.initialization.layerscale.technique import LayerScaleTechnique
from techniques.initialization.shared.branch_probes import (
    added,
    otherwise_without_decay,
    own_names,
    scale_gradient_roundings,
)
from techniques.shared.plain import filled, names_in, outputs_of, plain_model

OF_ITS_BASELINES = True  # whose branches end in a linear layer each
SMALL = 1e-3  # of the paper's scales: what is of second order in them is then a thousandth of the first
INITIAL = ((18, 0.1), (24, 1e-5), (math.inf, 1e-6))  # section 2.2: up to how many blocks, and what


def records(run: Run, own: LayerScaleTechnique) -> bool:
    """Tells whether it is the start, where scales have their initial value, or the middle, where each channel has its
    own."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "initial",
    "The scales start near zero: at 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 in deeper networks.",
    "Section 2.2",
    equals=1.0,
    tolerance=1e-6,
)
@judged(
    "gradient_roundings",
    "The output of each residual branch is multiplied by its diagonal matrix and nothing else is: the step's "
    "gradients are those of a plain model whose last layers are so multiplied.",
    "Equation 4, by the chain rule",
    id="each_branch_by_channel",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged("at_rest", "Every scale is trained.", "Section 2.2", id="learnable")
@judged(
    "decayed", "The scales have no weight decay.", "facebookresearch/deit: vectors are left out of it", id="no_decay"
)
@judged(
    "merged_apart",
    "After training the scales can be merged into the layers before them: rows of their weights, and biases, times "
    "the scale",
    "Equation 4: a diagonal matrix after a linear layer",
    id="mergeable",
    at_most=1e-9,  # of the outputs' norm, in float64
)
@judged(
    "moved_over_bound",
    "At the start the blocks move their input by at most the scale times what the branches give",
    "Section 2.2: close to the identity; the triangle inequality",
    id="near_identity",
    at_most=1.0,
    baselines=["vit", "mae", "gpt"],
    note="pre-norm blocks: BERT's norm after the addition is no identity",
)
@judged(
    "variance_growth",
    "At the start the variance of the residual stream hardly grows over the blocks",
    "Section 2.2; an unscaled branch of the stream's size would double it in each",
    id="variance_stays",
    at_most=1.5,
    baselines=["vit", "mae", "gpt"],
    note="pre-norm blocks",
)
@judged(
    "jacobian_off",
    "As the scale goes to zero, the Jacobian of the blocks goes to the identity in proportion to it",
    "Section 2.2: close to the identity function",
    id="jacobian_to_identity",
    at_most=20.0,  # times the scale: the sum over branches of their own Jacobians, a few each
    baselines=["vit", "mae", "gpt"],
    note="pre-norm blocks; along a random direction, at a thousandth of the paper's scale",
)
@judged(
    "gradient_slope",
    "Gradients of the branches' weights are proportional to the scale where that is small",
    "Equation 4, by the chain rule",
    id="gradients_follow_the_scale",
    equals=1.0,
    tolerance=0.01,
    baselines=["vit", "gpt", "bert"],
    note="one stack of blocks: what MAE's encoder learns passes a branch of its decoder, so that there the power is 2",
)
def probes(recording: Recording, own: LayerScaleTechnique) -> Mapping[str, float]:
    """Gradients and outputs are of the middle step, the latter relative to their norm in float64; all others are at the
    start. ``moved_over_bound`` is over the initial scale times the norms of what the branches give; ``jacobian_off``
    and ``gradient_slope`` are taken where the scale is SMALL. For a claim, ``added_per_branch_and_width`` is the
    parameters more than the plain model's."""
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
        "initial": max(torch.cat([tensor.flatten() for tensor in initial]).tolist(), key=lambda value: abs(value - 1)),
        "gradient_roundings": scale_gradient_roundings(
            recording, trace, plain, {end: f"{end.path}.scale" for end in ends}
        ),
        "decayed": otherwise_without_decay(recording, trace, scales),
        "at_rest": sum(int((trace.update.moved(name) == 0).sum()) for name in scales),
        "merged_apart": _merged_apart(recording, trace, list(ends)),
        **_trunk(recording, first, {f"{end.path}.scale" for end in ends}),
        "gradient_slope": _gradient_slope(recording, first, list(ends)),
    }


def _merged_apart(recording: Recording, trace: Trace, ends: list[Part]) -> float:
    scaled = copy.deepcopy(recording.run.model)
    values = trace.before.parameters
    with torch.no_grad():
        for name, parameter in scaled.named_parameters():
            parameter.copy_(values[name])
    plain = filled(plain_model(recording), values).double()
    with torch.no_grad():
        for end in ends:
            module, scale = plain.get_submodule(end.path), values.get(f"{end.path}.scale", torch.ones(())).double()
            weight_matrix(module).mul_(scale.reshape(-1, 1))
            if isinstance(module.bias, Tensor):
                module.bias.mul_(scale.flatten())
    ours, theirs = (outputs_of(recording, trace, model, torch.float64) for model in (scaled, plain))
    return ((ours - theirs).norm() / theirs.norm()).item()


@dataclass
class _Pass:
    """Records what entered and left the main stack's blocks, and the norms of what the branches gave before their
    scales."""

    enters: Tensor = field(default_factory=lambda: torch.empty(0))
    leaves: Tensor = field(default_factory=lambda: torch.empty(0))
    norms: list[Tensor] = field(default_factory=list)


@contextmanager
def _watched(model: nn.Module) -> Iterator[_Pass]:
    seen = _Pass()
    blocks = anatomy(model).blocks

    def enters(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.enters = arguments[0].detach().requires_grad_()
        return (seen.enters, *arguments[1:])

    def leaves(_: nn.Module, __: object, output: Any) -> None:
        seen.leaves = output[0] if isinstance(output, tuple) else output

    def gives(_: nn.Module, __: object, output: Tensor) -> None:
        seen.norms.append(output.detach().norm())

    hooks = [
        blocks[0].module.register_forward_pre_hook(enters),
        blocks[-1].module.register_forward_hook(leaves),
        *(
            getattr(end.module, "linear", end.module).register_forward_hook(gives)
            for block in blocks
            for end in block.branches
        ),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _trunk(recording: Recording, first: Trace, scales: set[str]) -> dict[str, float]:
    """Measures the blocks of the recorded start, also with scales SMALL times as large."""
    model = in_precision(recording.run.model, torch.float64).eval()
    values = {name: parameter.double() for name, parameter in first.before.parameters.items()}
    own = {name for name in values if name in scales}
    batch = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in first.batch.items()}
    initial = max((values[name].abs().max().item() for name in own), default=1.0)
    passes = []
    for factor in (1.0, SMALL):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name] * factor if name in own else values[name])
        with _watched(model) as seen:
            recording.run.baseline.forward(model, batch)
        passes.append(seen)
    start, near = passes
    direction = torch.randn(near.leaves.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (back,) = torch.autograd.grad(near.leaves, near.enters, direction)
    bound = initial * torch.stack(start.norms).sum()
    return {
        "moved_over_bound": ((start.leaves - start.enters).norm() / bound).item(),
        "variance_growth": (start.leaves.var() / start.enters.var()).item(),
        "jacobian_off": ((back - direction).norm() / direction.norm() / (SMALL * initial)).item(),
    }


def _gradient_slope(recording: Recording, first: Trace, ends: list[Part]) -> float:
    """Returns log2 of how much the gradients of the branches' last layers grow with twice the scales; the farthest from
    1."""
    values, norms = first.before.parameters, []
    for factor in (SMALL, 2 * SMALL):
        scaled = {name: value * factor if name.endswith(".scale") else value for name, value in values.items()}
        gradients = recording.gradients_at(scaled, first)
        names = names_in(plain_model(recording), gradients)
        norms.append([gradients[names[f"{end.path}.weight"]].double().norm().item() for end in ends])
    slopes = [math.log2(double / single) for single, double in zip(*norms, strict=True)]
    return max(slopes, key=lambda slope: abs(slope - 1))
