"""Tells what recorded steps show of a model whose layers are products, beside the plain model with the products as
weights.

The chain rule gives each factor's gradient, and theorem 1 the direction in which the product goes from a balanced
start: the first-order change of the product under the recorded gradients is compared with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.model.anatomy import anatomy, weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.overparameterization.arora_depth.technique import AroraDepth
from techniques.shared.plain import apart, filled, gradients_of, names_in, outputs_of, plain_model

EPS = torch.finfo(torch.float32).eps
Factors = dict[str, list[Tensor]]


def records(run: Run, own: AroraDepth) -> bool:
    """Tells whether it is the start, where the factors are balanced, or the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged("unfactored", "All matrices of the blocks are trained as products.", "Section 5", id="factored", scope="module")
@judged(
    "start_roundings",
    "Depth adds no expressiveness: the products begin as the reference's matrices.",
    "Section 4: the end-to-end weight matrix",
    id="same_function",
    at_most=2.0,  # of a matrix's norm: half a rounding of each factor, in float32
    scope="module",
)
@judged(
    "unbalanced",
    "Neighbouring factors are balanced: W_{j+1}^T W_{j+1} = W_j W_j^T.",
    "Theorem 1, equation 6",
    id="balanced",
    at_most=4.0,  # two factors on each side, half a rounding each, in a norm
    scope="module",
)
@judged(
    "gradient_roundings",
    "There is no nonlinearity between the factors: gradients are the chain rule's of the product.",
    "Section 4",
    id="linear",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "rule_roundings",
    "A small step of gradient descent on the factors moves the product by the sum of [W W^T]^((j-1)/N) G [W^T "
    "W]^((N-j)/N).",
    "Theorem 1",
    id="end_to_end_rule",
    at_most=1000.0,  # as the gradients'
    note="the recorded gradients of the first step, to first order in the rate",
)
@judged("at_rest", "Every factor is trained.", "Section 4", id="all_train")
@judged(
    "merged",
    "The evaluated model computes with single matrices what the products compute.",
    "Section 4: the end-to-end weight matrix",
    at_most=1e-12,
    scope="module",
    note="in float64",
)
def probes(recording: Recording, own: AroraDepth) -> Mapping[str, float]:
    """``merged`` is relative to the largest output, in float64. Claims read ``trained_parameters``, the factors' over
    the formula, and ``merged_parameters``, the evaluated model's over the plain one's."""
    if own.depth == 1:
        return {}
    run, plain, first, trace = recording.run, plain_model(recording), recording.traces[0], recording.trace
    layers = {part.path: weight_matrix(part.module).shape for part in anatomy(plain).linears}
    started = {name: parameter.detach().double().clone() for name, parameter in plain.named_parameters()}
    initial, sizes = factors_in(first.before.parameters, layers), [(min(s), sum(s)) for s in layers.values()]
    formula = sum(inner * both + (own.depth - 2) * inner**2 for inner, both in sizes)
    model = copy.deepcopy(run.model).double()
    evaluated = own.evaluated(model, run)
    outputs, merged = (outputs_of(recording, trace, model, torch.float64) for model in (model, evaluated))
    return {
        "unfactored": len(layers.keys() - {path for path, value in initial.items() if len(value) == own.depth}),
        "start_roundings": max(_off(_product(value), started[f"{path}.weight"]) for path, value in initial.items()),
        "unbalanced": max(
            _off(after.T @ after, before @ before.T) for value in initial.values() for after, before in pairwise(value)
        ),
        "gradient_roundings": max(_roundings(recording, trace)[0] for trace in (first, trace)),
        "rule_roundings": _roundings(recording, first)[1],
        "at_rest": sum(not trace.update.moved(name).any() for name in trace.update.before.parameters if _is_of(name)),
        "trained_parameters": sum(tensor.numel() for own in initial.values() for tensor in own) / formula,
        "merged": ((merged - outputs).abs().max() / outputs.abs().max()).item(),
        "merged_parameters": _count(evaluated) / _count(plain),
    }


def factors_in(values: Values, layers: Mapping[str, object]) -> Factors:
    """Returns the factors of each layer, W_N first, float64; a layer without any has none here."""
    named = {path: [name for name in values if name.startswith(f"{path}.") and _is_of(name)] for path in layers}
    return {path: [values[name].double() for name in names] for path, names in named.items() if names}


def _is_of(name: str) -> bool:
    return ".factors." in name


def _product(factors: list[Tensor]) -> Tensor:
    return reduce(torch.matmul, factors)


def _off(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).norm() / expected.norm()).item() / EPS


def _count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _roundings(recording: Recording, trace: Trace) -> tuple[float, float]:
    """Measures how far a step's gradients are from the chain rule's, and the product's first-order change from theorem
    1's."""
    plain, values, ours = plain_model(recording), trace.before.parameters, trace.of("backward")[0].gradients
    own = dict(filled(plain, values).named_parameters())
    layers = factors_in(values, {part.path: part for part in anatomy(plain).linears})
    with torch.no_grad():
        for path, factors in layers.items():
            own[f"{path}.weight"].copy_(_product(factors))
    gradients = gradients_of(recording, trace, plain)
    expected = {theirs: gradients[name] for name, theirs in names_in(plain, ours).items()}
    changes, rule = {}, {}
    for path, factors in layers.items():
        name, depth = f"{path}.weight", len(factors)
        moved = torch.zeros_like(gradients[name])
        for j in range(depth):
            left = reduce(
                torch.matmul, factors[:j], torch.eye(len(factors[0]), dtype=torch.float64, device=moved.device)
            )
            right = reduce(
                torch.matmul, factors[j + 1 :], torch.eye(factors[j].shape[1], dtype=torch.float64, device=moved.device)
            )
            of_factor = f"{path}.factors.{j}"
            expected[of_factor] = left.T @ gradients[name] @ right.T
            moved += left @ ours.get(of_factor, torch.zeros(())).double().expand_as(factors[j]) @ right
        changes[name], rule[name] = moved, theorem(own[name].detach().double(), gradients[name], depth)
    return apart(ours, expected), apart(changes, rule)


def theorem(weight: Tensor, gradient: Tensor, depth: int) -> Tensor:
    """Computes the sum of theorem 1; float64."""
    rows, columns = weight @ weight.T, weight.T @ weight
    return sum(
        (_power(rows, j / depth) @ gradient @ _power(columns, (depth - 1 - j) / depth) for j in range(depth)),
        start=torch.zeros_like(weight),
    )


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Computes the power of a symmetric matrix without negative eigenvalues, what is 0 but for roundings left out; the
    identity at 0."""
    if not exponent:
        return torch.eye(len(matrix), dtype=matrix.dtype)
    values, vectors = torch.linalg.eigh(matrix)
    rank = values > values.max() * len(matrix) * torch.finfo(matrix.dtype).eps
    return (vectors[:, rank] * values[rank] ** exponent) @ vectors[:, rank].T
