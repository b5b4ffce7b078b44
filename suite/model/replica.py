"""Finds what depends on what inside a block, by running the block on random values.

Names say little of how a block computes: which rows of a fused weight make queries, whether a branch ends in a scale
already. A block run alone, with the arguments that the model gives it and with random weights, shows it: a gradient
that is exactly zero is no dependence, whatever the weights will be (zero weights, as some start, would hide it). Only
shapes matter, so models without values (torch's FakeTensorMode) can be traced, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.func import functional_call
from torch.utils._pytree import tree_map

from suite.model.anatomy import Block
from suite.model.calls import Call, Forward, calls, lacks_values, undisturbed
from suite.model.segments import split_hidden

Finding = TypeVar("Finding")


def each_design(
    model: nn.Module, blocks: Sequence[Block], forward: Forward, examine: Callable[[Block, Replica], Finding]
) -> list[Finding]:
    """Returns what ``examine`` finds in each block; blocks that compute alike (equal classes and shapes, by name) are
    examined once. Raises ValueError where a block does not run."""
    findings: dict[Any, Finding] = {}
    for call in calls(model, blocks, forward):
        if _design(call.block) not in findings:
            with unset_fake_temporarily():
                findings[_design(call.block)] = examine(call.block, Replica(call))
    idle = [block.path for block in blocks if _design(block) not in findings]
    if idle:
        raise ValueError(f"{', '.join(idle[:3])} did not run, so that nothing tells what they compute")
    return [findings[_design(block)] for block in blocks]


def _design(block: Block) -> tuple[Any, ...]:
    modules = ((name, type(module)) for name, module in block.module.named_modules())
    return *modules, *((name, parameter.shape) for name, parameter in block.module.named_parameters())


class Replica:
    """Runs a block with random values in place of its own, on the arguments of a call.

    Attributes:
        values: its parameters by name; they want gradients, and so does what comes in, ``hidden``.
        outputs: of the last run, what came out of the modules that it scaled and that were called, by name.
    """

    def __init__(self, call: Call) -> None:
        self.block = call.block.module
        self.random = torch.Generator().manual_seed(0)
        hidden, args, kwargs = split_hidden(call.args, dict(call.kwargs))
        self.args, self.kwargs = tree_map(self._real, (args, kwargs))
        self.hidden = self._drawn(hidden).requires_grad_()
        self.values = {name: self._weight(p).requires_grad_() for name, p in self.block.named_parameters()}
        self.outputs: dict[str, Tensor] = {}
        self.buffers = {name: self._real(buffer) for name, buffer in self.block.named_buffers()}

    def __call__(
        self, replaced: Mapping[str, Tensor] | None = None, scaled: Mapping[str, float] | None = None
    ) -> Tensor:
        """Returns the hidden states that come out, with some parameters replaced and some modules' outputs scaled, by
        name."""
        self.outputs = {}
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(undisturbed(self.block))
            for name, factor in (scaled or {}).items():
                handle = self.block.get_submodule(name).register_forward_hook(partial(self._scale, name, factor))
                stack.callback(handle.remove)
            self.block.eval()
            state = self.values | self.buffers | dict(replaced or {})
            output = functional_call(self.block, state, (self.hidden, *self.args), dict(self.kwargs))
        return output[0] if isinstance(output, tuple) else output

    def _scale(self, name: str, factor: float, module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output
        self.outputs[name] = output * factor
        return self.outputs[name]

    def gradients(self, of: Tensor, over: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradients of a random combination of ``of``; None where nothing leads there."""
        if not of.requires_grad:
            return [None] * len(over)
        return list(torch.autograd.grad(of, over, self._drawn(of), retain_graph=True, allow_unused=True))

    def _drawn(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=self.random).to(like.dtype)
        return drawn if lacks_values(like) else drawn.to(like.device)

    def _weight(self, like: Tensor) -> Tensor:
        """Draws a matrix so that what comes out is about as large as what goes in, and a branch as the stream."""
        return self._drawn(like) * like.shape[-1] ** -0.5 if like.ndim >= 2 else self._drawn(like)

    def _real(self, value: Any) -> Any:
        """Returns an argument or buffer with values: its own, or random ones; nothing in place of a key-value cache."""
        if hasattr(value, "get_seq_length") and hasattr(value, "update"):
            return None
        if not isinstance(value, Tensor):
            return value
        if not lacks_values(value):
            return value.detach().clone()
        return self._drawn(value) if value.is_floating_point() else torch.ones(value.shape, dtype=value.dtype)


def zero(gradient: Tensor | None) -> bool:
    """Tells whether a gradient says that there is no dependence."""
    return gradient is None or not gradient.any()
