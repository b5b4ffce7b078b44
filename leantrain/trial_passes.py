"""Passes on trial: of a user's own loss, without a trace, and whether a fitted one does what a plain one does.

A trial keeps of each leaf that gradients reach, in the model or outside of it (a head, a soft prompt): its gradient and
how often one arrived. The model, gradients, hooks that act on their arrival and random numbers are then as they were.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from suite.model.attributes import Attributes
from suite.model.calls import untrained

Accumulated = Literal["none", "held", "all"]
TIMES = 4  # of what two plain passes differ by, where they do


@dataclass(frozen=True)
class Trial:
    """Holds what one pass gave: its loss, the gradients by leaf (on the CPU), and how often one arrived there.

    A leaf of the model goes by its name, another by its number in the graph: a pass may make its own.
    """

    loss: Tensor
    gradients: Mapping[str, Tensor]
    arrivals: Mapping[str, int]


@contextmanager
def trial_passes(model: nn.Module, accumulated: Accumulated) -> Iterator[Callable[[Tensor], None]]:
    """Passes inside leave no trace. What it gives protects the leaves outside of the model that a loss reaches: call
    it before each backward pass."""
    own = {id(each) for each in model.parameters()}
    outside: dict[int, tuple[Tensor, Tensor | None, dict[int, Any]]] = {}

    def protect(value: Tensor) -> None:
        for leaf in leaves_of(value):
            if id(leaf) not in own and id(leaf) not in outside:
                hooks = leaf._post_accumulate_grad_hooks or {}
                outside[id(leaf)] = leaf, leaf.grad, dict(hooks)
                leaf.grad = None
                hooks.clear()

    states, attributes = (random.getstate(), np.random.get_state()), Attributes.of(model, hooks=True)
    try:
        with untrained(model, accumulated):
            yield protect
    finally:
        attributes.put(whole=True)
        random.setstate(states[0])
        np.random.set_state(states[1])
        for leaf, gradient, hooks in outside.values():
            leaf.grad = gradient
            (leaf._post_accumulate_grad_hooks or {}).update(hooks)


def leaves_of(value: Tensor) -> list[Tensor]:
    """Finds the tensors whose ``.grad`` a backward pass from ``value`` fills."""
    found: dict[int, Tensor] = {}
    nodes, seen = [value.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        nodes += [following for following, _ in node.next_functions]
    return list(found.values())


def tried(model: nn.Module, loss_of: Callable[[], Tensor], running: AbstractContextManager[Any] | None = None) -> Trial:
    """Makes one pass, inside of ``running``."""
    counts: Counter[str] = Counter()

    def count(name: str, _: Tensor) -> None:
        counts[name] += 1

    with trial_passes(model, "none") as protect, ExitStack() as stack:
        with running or nullcontext():
            value = loss_of()
            protect(value)
            leaves = _named(model, leaves_of(value))
            for name, leaf in leaves.items():
                stack.callback(leaf.register_post_accumulate_grad_hook(partial(count, name)).remove)
            value.backward()
        leaves = {name: each for name, each in model.named_parameters() if each.grad is not None} | leaves
        gradients = {name: _local(e.grad).to("cpu", copy=True) for name, e in leaves.items() if e.grad is not None}
        return Trial(value.detach().cpu(), gradients, dict(counts))


def _named(model: nn.Module, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    names = {id(each): name for name, each in model.named_parameters()}
    return {names.get(id(leaf), f"tensor {number} outside of the model"): leaf for number, leaf in enumerate(leaves)}


def difference(fitted: Trial, plain: Callable[[], Trial], model: nn.Module) -> str:
    """Says what a fitted pass does otherwise than a plain one, on any rank, in words; nothing where it does the same.

    To the bit; where two plain passes differ (atomic additions on a GPU), within a few times as much.
    """
    one = plain()
    if all(on_all_ranks(_same(fitted, one), model)):  # all ranks take another pass, or none
        return ""
    return next(filter(None, on_all_ranks(_wrong(fitted, one, plain()), model)), "")


def _wrong(fitted: Trial, one: Trial, another: Trial) -> str:
    slack = {
        name: _apart(one.gradients[name], each) for name, each in another.gradients.items() if name in one.gradients
    }
    both = fitted.gradients.keys() & one.gradients.keys()
    wrong = [
        name
        for name in [*one.gradients, *(fitted.gradients.keys() - one.gradients.keys())]
        if name not in both or _apart(fitted.gradients[name], one.gradients[name]) > TIMES * slack.get(name, 0.0)
    ]
    if wrong:
        return f"{len(wrong)} of {len(one.gradients)} gradients differ from a plain pass's, that of {wrong[0]} for one"
    if fitted.arrivals != one.arrivals:
        return "gradients arrive another number of times than in a plain pass"
    if not _equal(fitted.loss, one.loss) and _equal(one.loss, another.loss):
        return f"the loss is {fitted.loss.item()} and not {one.loss.item()}"
    return ""


def _same(one: Trial, other: Trial) -> bool:
    return (
        _equal(one.loss, other.loss)
        and one.arrivals == other.arrivals
        and one.gradients.keys() == other.gradients.keys()
        and all(_equal(one.gradients[key], other.gradients[key]) for key in one.gradients)
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or (one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True))


def _apart(one: Tensor, other: Tensor) -> float:
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def _local(tensor: Any) -> Tensor:
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def on_all_ranks(value: Any, model: nn.Module) -> list[Any]:
    """Gathers what each of the ranks has that share the model's weights (FSDP2's, tensor parallelism's), in one
    order."""
    values = [value]
    for group in groups_of(model):
        everyone: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(everyone, values, group=group)
        values = [each for some in everyone for each in some]
    return values


def groups_of(model: nn.Module) -> list[Any]:
    """Finds the process groups over which the model's weights are spread; of whole weights none."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    mesh: Any = next((each.device_mesh for each in model.parameters() if hasattr(each, "device_mesh")), None)
    return [mesh.get_group(dimension) for dimension in range(mesh.ndim)] if mesh is not None else []
