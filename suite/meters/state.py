"""Counts model-state bytes: parameters, gradients, optimizer state, as held by this process (ZeRO, 1910.02054, section
3.1).

Bytes are those of distinct storages, so tied weights and views count once, a shard counts as its local part, and a
quantised state as its packed bytes. Never RSS: these are exact.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.meters.storage import storages, tensors_within, unique_bytes

DESCRIPTIVE_ATTRIBUTES = frozenset(
    {"param_groups", "defaults", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}
)


def _is_optimizer(value: Any) -> bool:
    """Decides by shape, not by class: many wrappers do not inherit from torch's."""
    return isinstance(value, torch.optim.Optimizer) or (
        hasattr(value, "param_groups") and hasattr(value, "step") and not isinstance(value, nn.Module)
    )


def _optimizers_in(value: Any) -> Iterator[Any]:
    if _is_optimizer(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _optimizers_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _optimizers_in(item)


def _nest(optimizer: Any, seen: set[int]) -> Iterator[Any]:
    """Yields ``optimizer`` and every optimizer that it wraps, outermost first."""
    if id(optimizer) in seen:
        return
    seen.add(id(optimizer))
    yield optimizer
    for value in getattr(optimizer, "__dict__", {}).values():
        for inner in _optimizers_in(value):
            yield from _nest(inner, seen)


def state_tensors(optimizer: Any) -> Iterator[Tensor]:
    """Yields the tensors that ``optimizer`` (a torch optimizer, a wrapper round some, or a list of them) keeps between
    steps.

    Everything reachable from its attributes: per-parameter state, master copies, flat buffers, slow weights. Not the
    parameters themselves, not their gradients, and no one-element tensor (step counters, learning rates).
    """
    seen: set[int] = set()
    nest = [inner for outer in _optimizers_in(optimizer) for inner in _nest(outer, seen)]
    parameters = [p for inner in nest for group in inner.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    foreign = {storage._cdata for tensor in (*parameters, *gradients) for storage in storages(tensor)}
    for inner in nest:
        for name, value in getattr(inner, "__dict__", {}).items():
            if name in DESCRIPTIVE_ATTRIBUTES or any(True for _ in _optimizers_in(value)):
                continue
            for tensor in tensors_within(value):
                if tensor.numel() > 1 and not all(storage._cdata in foreign for storage in storages(tensor)):
                    yield tensor


def state_bytes(optimizer: Any) -> int:
    """Counts the bytes of :func:`state_tensors`: AdamW in fp32 gives 8 a parameter, momentum SGD 4, plain SGD 0.

    Zero before the first step of an optimizer that makes its state lazily: take one step first.
    """
    return unique_bytes(state_tensors(optimizer))


def parameter_bytes(model: nn.Module) -> int:
    """Counts the bytes of the storages that hold ``model``'s parameters."""
    return unique_bytes(model.parameters())


def gradient_bytes(model: nn.Module) -> int:
    """Counts the bytes of the gradients that ``model``'s parameters hold now."""
    return unique_bytes(p.grad for p in model.parameters() if p.grad is not None)


def parameter_count(model: nn.Module, trainable: bool = False) -> int:
    """Counts the distinct scalar parameters (of those that require a gradient, if ``trainable``).

    Tied parameters count once, also when tied by sharing data. A sharded parameter counts as the whole, not the shard.
    """
    counts: dict[object, int] = {}
    for p in model.parameters():
        if p.requires_grad or not trainable:
            place = tuple((storage._cdata, tuple(p.shape), p.stride()) for storage in storages(p))
            offset = p.storage_offset() if p.layout is torch.strided else 0
            counts[(place, offset) if place else id(p)] = p.numel()
    return sum(counts.values())
