"""Checks what recorded steps show of parameters that all layers share: how many there are, and which gradient they
get."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.parallelism.albert_sharing.technique import AlbertSharing
from techniques.shared.plain import apart, filled, gradients_of, plain_model


@judged("blocks", "All layers have the parameters of one", "Section 3.1", id="one_block", equals=1.0)
@judged(
    "sum_roundings",
    "The gradient of a shared parameter is the sum over the layers of a model that has a copy in each",
    "Section 3.1",
    id="sum_over_layers",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
)
@judged("twice", "The optimizer moves a shared parameter once a step", "Section 3.1", id="updated_once")
def probes(recording: Recording, own: AlbertSharing) -> Mapping[str, float]:
    """``blocks`` is over the first block of each stack. ``sum_roundings`` is shown where all is shared and no table
    factorised."""
    run, parts = recording.run, recording.run.anatomy
    unique = {
        id(parameter): parameter.numel() for block in parts.every_block for parameter in block.module.parameters()
    }
    first = sum(parameter.numel() for stack in parts.stacks for parameter in stack.blocks[0].module.parameters())
    held = [id(parameter) for group in run.optimizer.param_groups for parameter in group["params"]]
    shown = {"blocks": sum(unique.values()) / first, "twice": len(held) - len(set(held))}
    if own.share == "all" and not own.embedding:
        shown["sum_roundings"] = _sum_roundings(recording)
    return shown


def _sum_roundings(recording: Recording) -> float:
    trace = recording.trace
    plain = plain_model(recording)
    shared = _of_first_block(plain)
    values = trace.before.parameters
    of_each = {name: values[shared.get(name, name)] for name, _ in plain.named_parameters()}
    summed: dict[str, Tensor] = {}
    for name, gradient in gradients_of(recording, trace, filled(plain, of_each)).items():
        first = shared.get(name, name)
        summed[first] = summed[first] + gradient if first in summed else gradient
    ours = trace.of("backward")[0].gradients
    return apart(ours, {name: value for name, value in summed.items() if name in ours})


def _of_first_block(plain: nn.Module) -> dict[str, str]:
    """Maps each parameter in a block to the name that the first block of its stack has it under."""
    return {
        f"{block.path}.{name}": f"{stack.blocks[0].path}.{name}"
        for stack in anatomy(plain).stacks
        for block in stack.blocks
        for name, _ in block.module.named_parameters()
    }
