"""Checks what recorded steps show of pruned weights that are multiplied without their zeros, beside dense products with
them.

For ``spgemm`` and ``outerspace``. Also the two matrices of a model's first MLP, pruned, as operands of sparse products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suite.meters.flops import FlopCounter
from suite.model.anatomy import in_features, is_transposed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.plain import apart, filled, gradients_of, plain_model
from techniques.shared.sparse import pruned
from techniques.shared.sparse.connections import mask, paths_of
from techniques.sparse_matmul.shared.pruned_products import PrunedProducts

SPARSITY = 0.9


@judged(
    "gradient_roundings",
    "A step's gradients are those of dense products with the pruned weights, at the connections",
    id="same_products",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
@judged(
    "off_density", "Each matrix keeps a tenth of its weights", "This entry's choice", id="density", recipes=["classic"]
)
@judged(
    "smaller_kept",
    "They are the largest by size",
    "This entry's choice: magnitude pruning",
    id="largest_stay",
    recipes=["classic"],
)
@judged(
    "off_initial",
    "Training begins with the pruned weights",
    "This entry's choice",
    id="starts_from_the_pruned",
    recipes=["classic"],
)
@judged("topology_changed", "No connection comes or goes", "This entry's choice", id="fixed_mask", recipes=["classic"])
@judged(
    "dead",
    "Pruned weights stay zero, and get neither gradient nor momentum",
    "This entry's choice",
    id="pruned_weights_are_zero",
    recipes=["classic"],
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient",
    "This entry's choice",
    id="pruned_weights_stay_zero",
    recipes=["classic"],
)
@judged(
    "flops_over",
    "A layer's three products take 2 FLOPs for each connection and token, each",
    id="work_by_connections",
    equals=1.0,
    tolerance=1e-09,
    kind="counted",
    scope="module",
    recipes=["classic"],
)
def of_products(recording: Recording, own: PrunedProducts) -> dict[str, float]:
    """Computes ``gradient_roundings``: of the first recorded step's gradients from those of dense products with the
    pruned weights, at the connections; ``flops_over``: counted FLOPs of a layer's three products over 6 for each
    connection and token; ``off_density``: connections more or fewer than the share of each layer; ``smaller_kept``:
    weights that stay though a larger one of their layer went; the invariants of
    :mod:`techniques.shared.sparse.pruned`."""
    run, trace = recording.run, recording.traces[0]
    initial, paths = pruned.initial_parameters(run), paths_of(run)
    masks = {path: mask(trace.before, path) for path in paths}
    expected = gradients_of(recording, trace, filled(plain_model(recording), trace.before.parameters))
    for path in paths:
        expected[f"{path}.weight"] *= masks[path]
    sizes = {path: initial[f"{path}.weight"].abs() for path in paths}
    return {
        "gradient_roundings": apart(trace.of("backward")[0].gradients, expected),
        "flops_over": _flops_over(run.model.get_submodule(paths[-1]), masks[paths[-1]]),
        "off_density": sum(abs(int(value.sum()) - round((1 - SPARSITY) * value.numel())) for value in masks.values()),
        "smaller_kept": sum(int((value & (sizes[p] < sizes[p][~value].max())).sum()) for p, value in masks.items()),
        **pruned.invariants(recording, own, initial),
    }


def operands(recording: Recording) -> tuple[Tensor, Tensor]:
    """Returns A [n, k] and B [k, m], float64: the pruned matrices of the first block's MLP, whose product maps its
    input; where the two do not follow each other (a gate, experts), the first pruned matrix of the model and its
    transpose."""
    of_mlp = [_matrix(recording, path) for path, _ in recording.run.anatomy.blocks[0].mlp_linears[:2]]
    if len(of_mlp) == 2 and of_mlp[1].shape[1] == of_mlp[0].shape[0]:
        return of_mlp[1], of_mlp[0]
    one = _matrix(recording, paths_of(recording.run)[0])
    return one, one.T


def _matrix(recording: Recording, path: str) -> Tensor:
    weight = recording.traces[0].before.parameters[f"{path}.weight"].double()
    return weight.T if is_transposed(recording.run.model.get_submodule(path)) else weight


def _flops_over(layer: nn.Module, pattern: Tensor) -> float:
    x = torch.ones(3, in_features(layer), requires_grad=True)
    with torch.enable_grad(), FlopCounter() as counter:
        layer(x).sum().backward(inputs=[x, layer.get_parameter("weight")])
    layer.zero_grad()
    return counter.total / (3 * 2 * len(x) * int(pattern.sum()))
