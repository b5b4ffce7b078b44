"""Sets the baseline's own model beside one that a technique has changed: what probes compare a recorded step with.

Gradients of the two are the same function of the same numbers, summed in another order. A sum of n terms errs by about
sqrt(n) roundings, n here being up to a million: GRADIENT_ROUNDINGS of cards.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.device.random_state import replayed, unchanged_randomness
from suite.model.anatomy import is_transposed
from suite.model.calls import in_precision
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values

SMALL = 0.01  # of the largest norm
WRAPPED = "linear"  # what suite.model.anatomy.AroundLinear calls the layer that it wraps


def plain_model(recording: Recording) -> nn.Module:
    """Returns the baseline's model as the run's techniques got it, in training."""
    with unchanged_randomness(recording.run.device):
        return recording.run.plain_model().train()


def names_in(plain: nn.Module, values: Values) -> dict[str, str]:
    """Maps each parameter of the plain model to its name among ``values``, where wrappers stand around layers."""
    bare = {".".join(part for part in name.split(".") if part != WRAPPED): name for name in values}
    return {name: name if name in values else bare[name] for name, _ in plain.named_parameters() if name in bare}


@torch.no_grad()
def filled(plain: nn.Module, values: Values) -> nn.Module:
    """Returns the plain model with its parameters among ``values``."""
    own = dict(plain.named_parameters())
    for name, theirs in names_in(plain, values).items():
        own[name].copy_(values[theirs])
    return plain


def gradients_of(recording: Recording, trace: Trace, plain: nn.Module) -> dict[str, Tensor]:
    """Computes gradients, float64, of the baseline's loss on a recorded batch with the step's dropout; 0 where there is
    none."""
    baseline, own = recording.run.baseline, dict(plain.named_parameters())
    with replayed(trace.random), torch.enable_grad():
        loss = baseline.losses(baseline.forward(plain, trace.batch), trace.batch).mean()
        gradients = torch.autograd.grad(loss, [value.requires_grad_() for value in own.values()], allow_unused=True)
    pairs = zip(own.items(), gradients, strict=True)
    return {name: (torch.zeros_like(schedule) if grad is None else grad).double() for (name, schedule), grad in pairs}


@torch.no_grad()
def outputs_of(recording: Recording, trace: Trace, model: nn.Module, dtype: torch.dtype | None = None) -> Tensor:
    """Computes what a copy of ``model`` in evaluation says of a recorded batch, computed in ``dtype``, or in its
    own."""
    batch = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in trace.batch.items()}
    output: Tensor = recording.run.baseline.forward(in_precision(model, dtype).eval(), batch).logits
    return output


def apart(ours: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Computes how far the tensor that is farthest from the expected one is, in float32 roundings of its norm. Rounding
    leaves something where the truth is 0 (a key's bias): norms count as SMALL of the largest or more. None of ours is
    0."""
    floor = SMALL * max(value.norm().item() for value in expected.values()) or 1.0
    zero = torch.zeros(())
    off = [
        (ours.get(name, zero).double() - value).norm().item() / (value.norm().item() + floor)
        for name, value in expected.items()
    ]
    return max(off) / torch.finfo(torch.float32).eps


def matrix_gradient(plain: nn.Module, path: str, gradients: Mapping[str, Tensor]) -> Tensor:
    """Returns the gradient of a linear layer's weight as [out_features, in_features]."""
    gradient = gradients[f"{path}.weight"]
    return gradient.T if is_transposed(plain.get_submodule(path)) else gradient
