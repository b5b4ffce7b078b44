"""What recorded steps show of adapters, beside the plain model with their formula behind its branches' last layers.

The formula is written out here, gelu by its tanh; the chain rule gives the gradients that the recorded step must have
had, of adapters, layer norms and the output layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from suite.model.anatomy import Part, anatomy, out_features
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.fine_tuning.adapter_houlsby.technique import Adapters
from techniques.fine_tuning.shared.tuning_probes import (
    at_the_start_and_in_the_middle,
    heads_in,
    trained_numbers,
    tuning_probes,
)
from techniques.shared.plain import apart, filled, gradients_of, names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each
WEIGHTS = ("down", "down_bias", "up", "up_bias")
INITIAL = 1e-3
CUT_OFF = 0.8796256610  # the deviation of a standard normal number that is cut off at 2
records = at_the_start_and_in_the_middle


def probes(recording: Recording, own: Adapters) -> Mapping[str, float]:
    """What :func:`tuning_probes` says, and, of the start, ``off_identity``: how far the adapter that moves its input
    most moves it, over the input's norm; ``initial``: the weights' deviation over that of a normal number of 1e-3 that
    is cut off at two of it; ``largest``: the largest weight over 2e-3. Of the last recorded step,
    ``adapter_parameters``: numbers in adapters that are trained, over the sum of 2 m d + m + d; and
    ``gradient_roundings``: of the step's gradients from the formula's."""
    plain, first, trace = plain_model(recording), recording.traces[0], recording.trace
    ends = [end for block in anatomy(plain).every_block for end in block.branches]
    own_names = [f"{end.path}.{name}" for end in ends for name in WEIGHTS]
    names = names_in(plain, trace.after.parameters)
    layer_norms = [module for module in plain.modules() if isinstance(module, nn.LayerNorm)]
    in_norms = {id(parameter) for module in layer_norms for parameter in module.parameters()}
    trained = {name for name, parameter in plain.named_parameters() if id(parameter) in in_norms} | heads_in(plain)
    expected = {names[name] for name in trained} | set(own_names)
    begun = first.before.parameters
    matrices = [begun[name] for name in own_names if name in begun and not name.endswith("bias")]
    drawn = torch.cat([matrix.double().flatten() for matrix in matrices])
    adapted = [end for end in ends if f"{end.path}.up" in begun]
    formula = sum(2 * own.bottleneck * d + own.bottleneck + d for d in (out_features(end.module) for end in ends))
    return {
        **tuning_probes(recording, plain, expected),
        "off_identity": _off_identity(recording, first, adapted),
        "initial": (drawn.square().mean().sqrt() / (CUT_OFF * INITIAL)).item(),
        "largest": (drawn.abs().max() / (2 * INITIAL)).item(),
        "adapter_parameters": trained_numbers(trace, own_names) / formula,
        "gradient_roundings": _gradient_roundings(recording, trace, plain, adapted, {n: names[n] for n in trained}),
    }


def _formula(values: Mapping[str, Tensor], path: str, h: Tensor) -> Tensor:
    down, down_bias, up, up_bias = (values[f"{path}.{name}"] for name in WEIGHTS)
    u = h @ down.T + down_bias
    gelu = u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))) / 2
    return h + gelu @ up.T + up_bias


def _off_identity(recording: Recording, first: Trace, ends: list[Part]) -> float:
    """What the adapters of the recorded start do to what the layers before them give."""
    ratios = [0.0]
    model = recording.run.model

    def note(module: Any, args: Any, output: Tensor) -> None:
        before = module.linear(*args)
        ratios.append(((output - before).norm() / before.norm()).item())

    with ExitStack() as stack:
        for end in ends:
            stack.callback(model.get_submodule(end.path).register_forward_hook(note).remove)
        recording.outputs_at(first.before.parameters, first)
    return max(ratios)


def _gradient_roundings(
    recording: Recording, trace: Trace, plain: nn.Module, ends: list[Part], trained: Mapping[str, str]
) -> float:
    """``trained``: parameters of the plain model, and their names in the run's."""
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    filled(plain, values)
    behind: dict[str, Tensor] = {}
    for end in ends:
        for name in WEIGHTS:
            behind[f"{end.path}.{name}"] = weight = nn.Parameter(values[f"{end.path}.{name}"].clone())
            end.module.register_parameter(name, weight)
        end.module.register_forward_hook(lambda _, args, output, path=end.path: _formula(behind, path, output))
    gradients = gradients_of(recording, trace, plain)
    expected = {theirs: gradients[name] for name, theirs in trained.items()}
    return apart(ours, expected | {name: gradients[name] for name in behind})
