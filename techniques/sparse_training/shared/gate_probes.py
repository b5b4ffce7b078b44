"""Checks what recorded steps show of coefficients on heads and neurons, and of a network that was drawn from them.

For the probes of ``earlybert`` and ``early_bird``. Rows and columns are as the baselines have them: a layer for each of
queries, keys and values, or one whose thirds make them, head after head; and two layers of an MLP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.model.anatomy import Block, anatomy, in_features, is_transposed, out_features, weight_matrix
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, names_in, outputs_of

Kept = Mapping[str, Sequence[int]]
"""The units that stay, by the path of the layer that joins them."""


@dataclass(frozen=True, eq=False)
class Joint:
    """Describes a layer that joins ``count`` units of ``size`` columns, and the rows [count, k] of others that make
    them."""

    path: str
    count: int
    size: int
    rows: Mapping[str, Tensor]

    @property
    def coefficients(self) -> str:
        return f"{self.path}.coefficients"


def heads_in(plain: nn.Module) -> list[Joint]:
    """Returns the attentions of the plain model, as the joints of their heads."""
    stacks = anatomy(plain).stacks
    return [_of_heads(block, stack.heads or 1) for stack in stacks for block in stack.blocks]


def neurons_in(plain: nn.Module) -> list[Joint]:
    """Returns the MLPs of the plain model, as the joints of their neurons."""
    return [_of_neurons(block) for block in anatomy(plain).every_block]


def _of_heads(block: Block, heads: int) -> Joint:
    assert block.attention_output
    path, features = block.attention_output.path, in_features(block.attention_output.module)
    by_head = torch.arange(features).view(heads, -1)
    if fused := block.projections.get("qkv"):
        rows = {fused.path: torch.cat([by_head + third * features for third in range(3)], 1)}
    else:
        rows = {part.path: by_head for part in block.projections.values()}
    return Joint(path, heads, features // heads, rows)


def _of_neurons(block: Block) -> Joint:
    assert block.mlp_output
    count = in_features(block.mlp_output.module)
    rows = {part.path: torch.arange(count)[:, None] for part in block.mlp_linears if part != block.mlp_output}
    return Joint(block.mlp_output.path, count, 1, rows)


def strongest(values: Values, heads: Sequence[Joint], neurons: Sequence[Joint], shares: tuple[float, float]) -> Kept:
    """Finds the units with the largest coefficients: of heads, each layer's; of neurons, all layers' together, and each
    layer's own largest in any case. ``shares`` of heads and neurons go."""
    ticket: dict[str, Sequence[int]] = {}
    for joint in heads:
        order = sorted(range(joint.count), key=_sizes(values, joint).__getitem__)
        ticket[joint.path] = sorted(order[round(shares[0] * joint.count) :])
    units = [(size, joint.path, unit) for joint in neurons for unit, size in enumerate(_sizes(values, joint))]
    stay = sorted(units, key=lambda unit: unit[0])[round(shares[1] * len(units)) :]
    for joint in neurons:
        largest = max(range(joint.count), key=_sizes(values, joint).__getitem__)
        ticket[joint.path] = sorted({unit for _, path, unit in stay if path == joint.path} | {largest})
    return ticket


def _sizes(values: Values, joint: Joint) -> list[float]:
    sizes: list[float] = values[joint.coefficients].abs().tolist()
    return sizes


def cut(plain: nn.Module, values: Values, joints: Sequence[Joint], ticket: Kept) -> dict[str, Tensor]:
    """Returns ``values``, by the plain model's names, without the rows and columns of the units that are not kept."""
    left = dict(values)
    for joint in joints:
        units = torch.tensor(ticket[joint.path])
        columns = torch.arange(joint.count * joint.size).view(joint.count, -1)[units].flatten()
        _select(plain, left, joint.path, columns, of_input=True)
        for path, rows in joint.rows.items():
            _select(plain, left, path, rows[units].flatten())
    return left


def _select(plain: nn.Module, values: dict[str, Tensor], path: str, indices: Tensor, *, of_input: bool = False) -> None:
    axis = int(of_input) ^ int(is_transposed(plain.get_submodule(path)))
    indices = indices.sort().values.to(values[f"{path}.weight"].device)
    values[f"{path}.weight"] = values[f"{path}.weight"].index_select(axis, indices)
    if not of_input and f"{path}.bias" in values:
        values[f"{path}.bias"] = values[f"{path}.bias"].index_select(0, indices)


def chain_rule(recording: Recording, trace: Trace, plain: nn.Module, joints: Sequence[Joint]) -> dict[str, Tensor]:
    """Computes the gradients that a step of the search must have had, the penalty aside: of a plain model in which
    coefficients multiply the joints' columns, and of these."""
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    own = dict(filled(plain, values).named_parameters())
    unscaled = {joint: weight_matrix(plain.get_submodule(joint.path)).detach().double().clone() for joint in joints}
    by_column = {joint: values[joint.coefficients].double().repeat_interleave(joint.size) for joint in joints}
    with torch.no_grad():
        for joint in joints:
            weight_matrix(plain.get_submodule(joint.path)).mul_(by_column[joint])
    gradients = gradients_of(recording, trace, plain)
    expected: dict[str, Tensor] = {}
    for joint in joints:
        of_columns = matrix_gradient(plain, joint.path, gradients)
        expected[joint.coefficients] = (of_columns * unscaled[joint]).sum(0).view(joint.count, -1).sum(1)
        of_columns.mul_(by_column[joint])
    return {theirs: gradients[name] for name, theirs in names_in(plain, ours).items() if name in own} | expected


def search_step(recording: Recording, trace: Trace, plain: nn.Module, joints: Sequence[Joint]) -> tuple[float, float]:
    """Computes how far a step's gradients are from the chain rule's, the penalty aside, and that penalty: what is added
    to the gradient of a coefficient's size, on average."""
    ours, values = trace.of("backward")[0].gradients, trace.before.parameters
    expected = chain_rule(recording, trace, plain, joints)
    signs = {joint.coefficients: values[joint.coefficients].double().sign() for joint in joints}
    added = [(ours[name].double() - expected[name]) * sign for name, sign in signs.items()]
    penalty = torch.cat(added).mean().item()
    return apart(ours, expected | {name: expected[name] + penalty * sign for name, sign in signs.items()}), penalty


def masked_apart(recording: Recording, plain: nn.Module, joints: Sequence[Joint], ticket: Kept) -> float:
    """Computes how far the pruned model's outputs are from those of the whole one in which the joints' columns of the
    units that went are 0, whatever else these units compute; of the largest, in float64. Infinite where other units
    went."""
    run, trace = recording.run, recording.trace
    values = {name: parameter.detach() for name, parameter in run.model.named_parameters()}
    positions = {
        name: torch.arange(parameter.numel()).view_as(parameter) for name, parameter in plain.named_parameters()
    }
    places = cut(plain, positions, joints, ticket)
    if any(name not in values or values[name].shape != place.shape for name, place in places.items()):
        return math.inf
    with torch.no_grad():
        for joint in joints:
            weight_matrix(plain.get_submodule(joint.path)).zero_()
        for name, parameter in plain.named_parameters():
            parameter.view(-1)[places[name].flatten()] = values[name].flatten()
    small, whole = (outputs_of(recording, trace, model, torch.float64) for model in (run.model, plain))
    return ((small - whole).abs().max() / whole.abs().max()).item()


def removed_by_formula(plain: nn.Module, heads: Sequence[Joint], neurons: Sequence[Joint], ticket: Kept) -> int:
    """Counts the parameters of the units that went: 4 d s + 3 s of a head of size s, with its biases, and 2 d + 1 of a
    neuron."""
    width = {joint: out_features(plain.get_submodule(joint.path)) for joint in (*heads, *neurons)}
    gone = {joint: joint.count - len(ticket[joint.path]) for joint in (*heads, *neurons)}
    of_heads = sum(gone[joint] * joint.size * (4 * width[joint] + 3) for joint in heads)
    return of_heads + sum(gone[joint] * (2 * width[joint] + 1) for joint in neurons)
