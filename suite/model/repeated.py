"""Finds a model's repeated modules, by what runs: the blocks of any architecture, in the order of their calls.

Candidates are the children of ModuleLists, Sequentials and ModuleDicts that have weights and modules of their own. The
outermost that run are blocks: of whatever kind (attention, state space, convolution), of one class or several. Where
one is a stage, a chain of modules of one class that make nearly all of what it makes, its modules are the blocks.
Experts of a mixture are not: none of them gets what another gave.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

MOST_OF = 0.8  # of the elements that a stage's leaf modules give, for its modules to be the blocks


class NothingRepeats(ValueError):
    """Is raised where no module of the model is repeated."""


@dataclass
class _CandidateCall:
    """Records a call of a candidate, and the candidates' calls inside."""

    module: nn.Module
    container: int
    elements: int = 0  # that leaf modules gave inside
    inner: list[_CandidateCall] = field(default_factory=list)
    outputs: list[weakref.ref[Tensor]] = field(default_factory=list)
    handed_on: bool = False  # whether it got what the call before it gave


def calls_of_blocks(model: nn.Module, forward: Callable[[], Any]) -> list[nn.Module]:
    """Returns the module of each call of a block in one forward pass, which ``forward`` makes. Raises
    NothingRepeats."""
    root = _CandidateCall(model, 0)
    stack = [root]
    with ExitStack() as hooks, torch.no_grad():
        for module, container in _candidates(model):
            hooks.callback(
                module.register_forward_pre_hook(
                    partial(_began, stack, container), with_kwargs=True, prepend=True
                ).remove
            )
            hooks.callback(module.register_forward_hook(partial(_ended, stack), always_call=True).remove)
        for module in model.modules():
            if not any(True for _ in module.children()):
                hooks.callback(module.register_forward_hook(partial(_counted, stack)).remove)
        forward()
    found = [each for call in root.inner for each in _blocks(call)]
    if len(found) < 2:
        raise NothingRepeats(
            f"no repeated modules ran in {type(model).__name__}: looked for a ModuleList, Sequential or ModuleDict "
            "whose members have weights and modules of their own; what runs again is such a member"
        )
    return found


def _candidates(model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    seen: set[int] = set()
    for container in model.modules():
        if isinstance(container, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            for child in container.children():
                composite = any(True for _ in child.children()) and any(True for _ in child.parameters())
                if composite and id(child) not in seen and not isinstance(child, nn.ModuleList | nn.ModuleDict):
                    seen.add(id(child))
                    yield child, id(container)


def _began(stack: list[_CandidateCall], container: int, module: nn.Module, args: Any, kwargs: Any) -> None:
    call = _CandidateCall(module, container)
    if before := stack[-1].inner[-1:]:
        given = [reference() for reference in before[0].outputs]
        call.handed_on = any(each is one for each in _tensors((args, kwargs)) for one in given)
    stack[-1].inner.append(call)
    stack.append(call)


def _ended(stack: list[_CandidateCall], module: nn.Module, args: Any, output: Any) -> None:
    while len(stack) > 1 and stack[-1].module is not module:  # of calls that ended by an exception
        stack.pop()
    call = stack.pop()
    call.outputs = [weakref.ref(each) for each in _tensors(output)]
    stack[-1].elements += call.elements


def _counted(stack: list[_CandidateCall], _: nn.Module, args: Any, output: Any) -> None:
    stack[-1].elements += sum(each.numel() for each in _tensors(output))


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


def _blocks(call: _CandidateCall) -> list[nn.Module]:
    """Returns the call itself, or, of a stage, the calls inside."""
    by_container = Counter(inner.container for inner in call.inner)
    chains = [inner for inner in call.inner if by_container[inner.container] > 1]
    classes = {type(inner.module) for inner in chains}
    elements = sum(inner.elements for inner in chains)
    in_a_row = 2 * sum(inner.handed_on for inner in chains) >= len(chains) - 1
    if len(classes) == 1 and elements >= MOST_OF * call.elements and in_a_row:
        return [block for inner in call.inner if inner in chains for block in _blocks(inner)]
    return [call.module]
