"""Tells what recorded steps show of Fixup, beside a plain model without norms.

s (W (x + b) + c) = (s W) x + s (b W 1 + c 1): a plain model whose weights are so multiplied, and whose bias vectors are
these, is the same function, and the chain rule gives the gradients that the recorded step must have had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import Anatomy, Block, Part, anatomy, weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.initialization.fixup.technique import Fixup
from techniques.initialization.shared import branch_probes
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each
LAYERS = {"attention": 4, "mlp": 2}  # of a branch: queries, keys, values and output; two
EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: Fixup) -> bool:
    """Tells whether it is the start, where only the head learns, or the middle, where everything does."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "largest_output",
    "The classification layer starts at 0, so that the network's first outputs are 0.",
    "Section 3, rule 1",
    id="zero_output",
)
@judged(
    "loss_over_chance",
    "The first loss is the logarithm of the number of classes.",
    "Section 3, rule 1",
    id="loss_at_chance",
    equals=1.0,
    tolerance=1e-6,
    baselines=["gpt", "bert", "vit"],
)
@judged(
    "off_identity",
    "The last layer of each branch starts at 0, so that every block is the identity.",
    "Section 3, rule 1",
    id="identity",
    scope="module",
)
@judged(
    "off_identity_jacobian",
    "The Jacobian of the blocks is the identity, too.",
    "Section 3, rule 1",
    id="identity_jacobian",
    scope="module",
)
@judged(
    "other_gradients",
    "In the first step nothing but the classification layer has a gradient.",
    "Section 3, rule 1, by the chain rule",
    id="head_alone_first",
)
@judged(
    "silent_head", "All of the classification layer has one.", "Section 3, rule 1, by the chain rule", id="head_learns"
)
@judged(
    "off_factor",
    "The other layers of a branch of m layers are scaled by L^(-1/(2m-2)), L being the number of branches.",
    "Section 3, rule 2; m = 4 of an attention in the authors' code",
    id="branch_scaling",
    at_most=2.0,  # roundings of a product
)
@judged("off_start", "Multipliers start at 1 and biases at 0.", "Section 3, rule 3", id="numbers_start")
@judged("norms", "No layer norm is left.", "Title; section 3", id="no_norm")
@judged(
    "gradient_roundings",
    "Numbers are added before layers and activations and multiply branches: the step's gradients are those of a model "
    "without norms with such weights and biases.",
    "Section 3, rule 3, by the chain rule",
    id="architecture",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged("decayed", "The numbers have no weight decay.", "The recipes: vectors are left out of it", id="no_decay")
def probes(recording: Recording, own: Fixup) -> Mapping[str, float]:
    """``norms``, ``gradient_roundings`` and ``decayed`` are of the middle step, all others of the first. Claims read
    ``vectors``, the vectors among the blocks' parameters, and ``off_numbers``, the numbers among them more or fewer
    than one for each layer, for each MLP's activation and for each branch."""
    first, trace = recording.traces[0], recording.trace
    plain = branch_probes.without_layer_norms(plain_model(recording))
    parts = anatomy(plain)
    values = first.before.parameters
    _untie(parts)
    names = names_in(plain, values)
    off_factor = max(
        _off_factor(block, part, sum(len(other.branches) for other in parts.every_block), values, names)
        for block in parts.every_block
        for part in block.linears
    )
    of_head = {id(parameter) for head in parts.head for parameter in head.module.parameters()}
    heads = {names[name] for name, parameter in plain.named_parameters() if id(parameter) in of_head}
    paths = tuple(f"{block.path}." for block in parts.every_block)
    inside = {name: value for name, value in values.items() if name.startswith(paths)}
    numbers = [name for name, value in inside.items() if value.numel() == 1]
    expected = sum(len(block.linears) + 1 + len(block.branches) for block in parts.every_block)
    with branch_probes.passing(recording, values, first) as stacks:
        off = branch_probes.off_identity(stacks), branch_probes.off_identity_jacobian(stacks)
    outputs = recording.outputs_at(values, first).logits
    others = [name for name in values if name not in heads and name in first.of("backward")[0].gradients]
    return {
        "largest_output": outputs.abs().max().item(),
        "loss_over_chance": recording.loss_at(values, first) / math.log(outputs.shape[-1]),
        "off_identity": off[0],
        "off_identity_jacobian": off[1],
        "other_gradients": len(others) - branch_probes.without_gradient(first, others),
        "silent_head": branch_probes.without_gradient(first, heads),
        "off_factor": off_factor,
        "vectors": sum(value.numel() > 1 and value.ndim == 1 for value in inside.values()),
        "off_numbers": abs(len(numbers) - expected),
        "off_start": sum(values[name].item() != name.endswith(".scale") for name in numbers),
        "norms": branch_probes.layer_norms_run(recording, trace),
        "gradient_roundings": _gradient_roundings(recording, trace, plain, parts),
        "decayed": branch_probes.otherwise_without_decay(recording, trace, numbers),
    }


def _off_factor(block: Block, part: Part, branches: int, values: Values, names: Mapping[str, str]) -> float:
    layers = LAYERS["mlp" if part in block.mlp_linears else "attention"]
    factor = 0.0 if part in block.branches else branches ** (-1 / (2 * layers - 2))
    linear: Any = part.module
    usual = linear.weight.detach()
    off = values[names[f"{part.path}.weight"]].double() - factor * usual.double()
    return (off.abs().max() / usual.abs().max()).item() / EPS


def _untie(parts: Anatomy) -> None:
    for _, module in parts.head:
        head: Any = module
        head.weight = nn.Parameter(head.weight.detach().clone())


@torch.no_grad()
def _gradient_roundings(recording: Recording, trace: Trace, plain: nn.Module, parts: Anatomy) -> float:
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    filled(plain, values)
    names = names_in(plain, ours)
    own: dict[str, dict[str, Any]] = {}
    for part in parts.linears:
        wrapped = names[f"{part.path}.weight"].removesuffix(".linear.weight")
        scale = values.get(f"{part.path}.scale", torch.ones(1))
        before, after = values[f"{wrapped}.before"], values.get(f"{wrapped}.after", torch.zeros(1))
        weight = weight_matrix(part.module).double().clone()
        bias = before.double().flatten() * weight.sum(1) + after.double()
        own[part.path] = {
            "wrapped": wrapped,
            "scale": scale.double(),
            "before": before.double(),
            "weight": weight,
            "bias": bias,
        }
        weight_matrix(part.module).mul_(scale)
        linear: Any = part.module
        linear.bias.copy_(scale * bias)
    gradients = gradients_of(recording, trace, plain)
    expected: dict[str, Tensor] = {}
    for path, value in own.items():
        rows, bias = matrix_gradient(plain, path, gradients), gradients.pop(f"{path}.bias")
        expected[f"{path}.scale"] = ((rows * value["weight"]).sum() + bias @ value["bias"]).view(1)
        expected[f"{value['wrapped']}.before"] = value["scale"] * (bias @ value["weight"].sum(1)).view(1)
        expected[f"{value['wrapped']}.after"] = value["scale"] * bias.sum().view(1)
        rows.mul_(value["scale"]).add_(value["scale"] * value["before"] * bias[:, None])
    expected = {name: value for name, value in expected.items() if name in values}
    expected |= {names[name]: gradient for name, gradient in gradients.items() if name in names}
    return apart(ours, expected)
