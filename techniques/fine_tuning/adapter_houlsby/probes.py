"""Tells what recorded steps show of adapters, beside the plain model with their formula behind its branches' last
layers.

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
from suite.reading.judged import judged
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


@judged(
    "elsewhere",
    "Adapters, layer norms and the output layer of a new task are trained, all of them, and nothing else is",
    "Section 2.1",
    id="what_is_trained",
)
@judged(
    "frozen_moved", "No other parameter of the pre-trained model moves by a bit", "Section 2.1", id="the_rest_is_frozen"
)
@judged(
    "at_rest",
    "The step moves every tensor of adapters, layer norms and output layer",
    "Section 2.1",
    id="all_of_it_moves",
)
@judged(
    "gradient_roundings",
    "A branch's last layer gives h and the adapter h + W2 gelu(W1 h + b1) + b2, before the residual addition and "
    "norm: the step's gradients are those of that function",
    "Section 2.1 and figure 2, by the chain rule",
    id="function",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "off_identity",
    "At the start an adapter changes its input by a thousandth of its norm at most",
    "Section 2.1: near-identity initialisation",
    id="near_identity",
    at_most=1e-3,
)
@judged(
    "initial",
    "Both matrices start as normal numbers of deviation 1e-3, cut off at two deviations",
    "google-research/adapter-bert: feedforward_adapter",
    id="initial_deviation",
    equals=1.0,
    tolerance=0.08,  # some two thousand numbers at pico, whose deviation errs by 1.3 %
)
@judged(
    "largest",
    "No weight starts farther from 0 than two deviations",
    "google-research/adapter-bert: tf.truncated_normal_initializer",
    id="initial_bound",
    at_most=1.0001,  # 2e-3 in float32
)
@judged(
    "rate",
    "Ten times the learning rate of full fine-tuning",
    "This entry's choice after the rates of section 3.1",
    equals=10.0,
    tolerance=1e-6,
)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each trained number and none for a frozen one",
    "Follows from section 2.1: two moments in float32",
    id="state_for_what_trains",
    equals=8.0,
    kind="counted",
)
def probes(recording: Recording, own: Adapters) -> Mapping[str, float]:
    """Includes what :func:`tuning_probes` says. ``initial`` is over the deviation of a normal number that is cut off
    likewise. For a claim, ``adapter_parameters`` is the numbers in adapters that are trained, over the sum of 2 m d + m
    + d."""
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
    """Measures what the adapters of the recorded start do to what the layers before them give."""
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
    """Compares the gradients with the plain model's; ``trained``: parameters of the plain model, and their names in the
    run's."""
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
