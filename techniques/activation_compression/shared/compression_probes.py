"""Computes what probes of compressed activations compare: a pass of a recorded step, with what is kept compressed or
not."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values


def one_pass(recording: Recording, trace: Trace) -> tuple[Tensor, Values]:
    """Computes the outputs and the gradients of a step's batch, at the parameters before it."""
    outputs: list[Tensor] = []

    def noted(output: Any) -> Tensor:
        outputs.append(output.logits if hasattr(output, "logits") else output)
        return torch.zeros(())

    gradients = recording.gradients_at(trace.before.parameters, trace, noted)
    return outputs[0].detach(), gradients


def relative_error(ours: Values, exact: Values) -> float:
    """Computes the norm of the difference of gradients, over that of the exact ones."""
    difference = sum((ours[name].double() - value.double()).square().sum().item() for name, value in exact.items())
    return math.sqrt(difference / sum(value.double().square().sum().item() for value in exact.values()))
