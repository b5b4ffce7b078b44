"""What recorded steps show of LoRA, beside a plain model with weights W0 + (alpha / r) B A.

The rows of queries and values are taken as the baselines have them: a layer for each, or one whose thirds make queries,
keys and values. The chain rule gives the gradients of A and B that the recorded step must have had.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.model.anatomy import anatomy, in_features, out_features, weight_matrix
from techniques.fine_tuning.lora.technique import LoRA
from techniques.shared.low_rank import merge
from techniques.shared.moves import rate_over_the_baselines
from techniques.shared.plain import (
    apart,
    filled,
    gradients_of,
    matrix_gradient,
    names_in,
    outputs_of,
    plain_model,
)

OF_ITS_BASELINES = True  # whose projections are apart, or three equal parts


def records(run: Run, own: LoRA) -> bool:
    """The start, where the update is 0, and the middle."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: LoRA) -> Mapping[str, float]:
    """``elsewhere``: factors of other rows than those of queries and values, or none of these;
    ``different_at_start``: outputs other than the plain model's; ``frozen_moved``: pre-trained values that have
    moved since, the head aside; ``factors_at_rest``: tensors A and B that the step left alone; ``update_parameters``:
    what is trained beside the head, over the sum of r (d_in + d_out); ``gradient_roundings``: of A's and B's gradients
    from the chain rule's; ``merged``: how far outputs are after merging, of the largest, in float64; ``rate``: the
    learning rate over full fine-tuning's."""
    if not own.rank:
        return {}
    plain, first, trace = plain_model(recording), recording.traces[0], recording.trace
    with recording.at(first.before.parameters):
        different = outputs_of(recording, first, recording.run.model) != outputs_of(recording, first, plain)
    started, values = dict(plain.named_parameters()), trace.after.parameters
    head = {name for part in anatomy(plain).head for name in started if name.startswith(f"{part.path}.")}
    moved = {name: int((values[theirs] != started[name]).sum()) for name, theirs in names_in(plain, values).items()}
    factors = values.keys() - set(names_in(plain, values).values())
    trained = sum(each.numel() for name, each in trace.of("backward")[0].gradients.items() if name in factors)
    targets = _targets(plain)
    formula = sum(own.rank * (in_features(each.layer(plain)) + each.count) for each in targets)
    model = copy.deepcopy(recording.run.model)
    apart_outputs = outputs_of(recording, trace, model, torch.float64)
    merged = outputs_of(recording, trace, merge(model.double()), torch.float64)
    return {
        "elsewhere": len(factors ^ {name for each in targets for name in each.factors}),
        "different_at_start": int(different.sum()),
        "frozen_moved": sum(count for name, count in moved.items() if name not in head),
        "factors_at_rest": sum(not trace.update.moved(name).any() for name in factors),
        "update_parameters": trained / formula,
        "gradient_roundings": _gradient_roundings(recording, plain, targets, own),
        "merged": ((merged - apart_outputs).abs().max() / apart_outputs.abs().max()).item(),
        **rate_over_the_baselines(recording),
    }


@dataclass(frozen=True)
class _Target:
    """Rows [start, start + count) of a layer of the plain model, and the names of their factors."""

    path: str
    start: int
    count: int
    index: int

    def layer(self, plain: nn.Module) -> nn.Module:
        return plain.get_submodule(self.path)

    @property
    def factors(self) -> tuple[str, str]:
        """The names of A and B."""
        return f"{self.path}.a.{self.index}", f"{self.path}.b.{self.index}"


def _targets(plain: nn.Module) -> list[_Target]:
    targets = []
    for block in anatomy(plain).every_block:
        if fused := block.projections.get("qkv"):
            third = out_features(fused.module) // 3
            targets += [_Target(fused.path, start * third, third, index) for index, start in enumerate((0, 2))]
        else:
            parts = [block.projections[role] for role in ("query", "value")]
            targets += [_Target(part.path, 0, out_features(part.module), 0) for part in parts]
    return targets


def _gradient_roundings(recording: Recording, plain: nn.Module, targets: list[_Target], own: LoRA) -> float:
    trace = recording.trace
    values, ours, scale = trace.before.parameters, trace.of("backward")[0].gradients, own.alpha / own.rank
    adapted = [each for each in targets if values.keys() >= set(each.factors)]
    factors = {each: [values[name].double() for name in each.factors] for each in adapted}
    filled(plain, values)
    with torch.no_grad():
        for each, (a, b) in factors.items():
            weight_matrix(each.layer(plain))[each.start : each.start + each.count] += scale * (b @ a)
    gradients = gradients_of(recording, trace, plain)
    expected: dict[str, Tensor] = {}
    for each, (a, b) in factors.items():
        of_rows = matrix_gradient(plain, each.path, gradients)[each.start : each.start + each.count]
        name_a, name_b = each.factors
        expected |= {name_a: scale * b.T @ of_rows, name_b: scale * of_rows @ a.T}
    return apart(ours, expected)
