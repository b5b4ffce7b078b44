"""Tells what recorded steps show of a low-rank update, beside a plain model: for the probes of lora and alpaca_lora.

The rows of queries and values are taken as the baselines have them: a layer for each, or one whose thirds make queries,
keys and values.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from suite.device.random_state import unchanged_randomness
from suite.model.anatomy import anatomy, in_features, out_features, weight_matrix
from suite.reading.recording import Recording
from techniques.fine_tuning.shared.low_rank import merge, updates
from techniques.shared.plain import names_in, outputs_of


def structure(recording: Recording, plain: nn.Module, rank: int, trains_head: bool) -> dict[str, float]:
    """Returns ``elsewhere``: factors of other layers than those of queries and values, or none of these, and rows of a
    block's layers that the update changes and are none of theirs, or are and stay as they were; ``different_at_start``:
    outputs other than the plain model's; ``frozen_moved``: pre-trained values that have moved since, the head aside
    where it trains; ``factors_at_rest``: tensors A and B that the step left alone; ``update_parameters``: what is
    trained beside the head, over the sum of r (d_in + d_out); ``merged``: how far outputs are after merging, of the
    largest, in float64; ``dropped_for_the_layer``: layers that get anything else than the layer around them, while half
    of that is dropped out for the update. ``plain`` is the model as the run's techniques got it."""
    first, trace = recording.traces[0], recording.trace
    with recording.at(first.before.parameters):
        different = outputs_of(recording, first, recording.run.model) != outputs_of(recording, first, plain)
    started, values = dict(plain.named_parameters()), trace.after.parameters
    paths = [f"{part.path}." for part in anatomy(plain).head] if trains_head else []
    head = {name for name in started if name.startswith(tuple(paths))}
    moved = {name: int((values[theirs] != started[name]).sum()) for name, theirs in names_in(plain, values).items()}
    factors = values.keys() - set(names_in(plain, values).values())
    trained = sum(gradient.numel() for name, gradient in trace.of("backward")[0].gradients.items() if name in factors)
    targets = targets_in(plain)
    formula = sum(rank * (in_features(target.layer(plain)) + target.count) for target in targets)
    model = copy.deepcopy(recording.run.model)
    apart_outputs = outputs_of(recording, trace, model, torch.float64)
    whole = merge(model.double())
    merged = outputs_of(recording, trace, whole, torch.float64)
    return {
        "elsewhere": len(factors ^ {name for target in targets for name in target.factors})
        + _rows(plain, whole, targets),
        "different_at_start": int(different.sum()),
        "frozen_moved": sum(count for name, count in moved.items() if name not in head),
        "factors_at_rest": sum(not trace.update.moved(name).any() for name in factors),
        "update_parameters": trained / formula,
        "dropped_for_the_layer": _dropped(recording),
        "merged": ((merged - apart_outputs).abs().max() / apart_outputs.abs().max()).item(),
    }


@torch.no_grad()
def _dropped(recording: Recording) -> int:
    model = copy.deepcopy(recording.run.model).train()
    got: dict[str, list[torch.Tensor]] = {}
    for path, update in updates(model).items():
        update.dropout.p = 0.5
        for module in (update, update.linear):
            module.register_forward_pre_hook(lambda _, inputs, path=path: got.setdefault(path, []).append(inputs[0]))
    with unchanged_randomness(recording.run.device):
        recording.run.baseline.forward(model, recording.trace.batch)
    return sum(not torch.equal(*pair) for pair in got.values())


def _rows(plain: nn.Module, merged: nn.Module, targets: list[Target]) -> int:
    """Counts the rows of the blocks' layers where the merged model differs and no target is, or a target is and it does
    not."""
    wrong = 0
    for path, layer in anatomy(plain).linears:
        weight = weight_matrix(layer).double()
        wanted = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        for target in targets:
            if target.path == path:
                wanted[target.start : target.start + target.count] = True
        changed = (weight_matrix(merged.get_submodule(path)) != weight).any(1)
        wrong += int((changed != wanted).sum())
    return wrong


@dataclass(frozen=True)
class Target:
    """Describes rows [start, start + count) of a layer of the plain model, and the names of their factors."""

    path: str
    start: int
    count: int
    index: int

    def layer(self, plain: nn.Module) -> nn.Module:
        return plain.get_submodule(self.path)

    @property
    def factors(self) -> tuple[str, str]:
        """Returns the names of A and B."""
        return f"{self.path}.a.{self.index}", f"{self.path}.b.{self.index}"


def targets_in(plain: nn.Module) -> list[Target]:
    targets = []
    for block in anatomy(plain).attending_blocks:
        if fused := block.projections.get("qkv"):
            third = out_features(fused.module) // 3
            targets += [Target(fused.path, start * third, third, index) for index, start in enumerate((0, 2))]
        else:
            parts = [block.projections[role] for role in ("query", "value")]
            targets += [Target(part.path, 0, out_features(part.module), 0) for part in parts]
    return targets
