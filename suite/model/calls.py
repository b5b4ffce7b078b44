"""Shows how a model calls its blocks, seen in one pass that leaves no trace; and copies it for passes of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from suite.model.anatomy import Block

Forward = Callable[[], Any]
"""Passes some examples through a model, in whatever mode it is in."""


@dataclass(frozen=True)
class Call:
    """Records a block and the arguments of its last call."""

    block: Block
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def calls(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> list[Call]:
    """Tells how one pass of ``model`` in evaluation calls ``blocks``; those that do not run are left out."""
    seen: dict[int, Call] = {}
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(model))
        for number, block in enumerate(blocks):

            def note(_: nn.Module, args: Any, kwargs: Any, number: int = number, block: Block = block) -> None:
                seen[number] = Call(block, args, kwargs)

            handle = block.module.register_forward_pre_hook(note, with_kwargs=True)
            stack.callback(handle.remove)
        model.eval()
        forward()
    return [seen[number] for number in sorted(seen)]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Keeps what happens inside from leaving a trace in the random state, the modules' modes and the buffers."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=devices, enabled=not any(map(lacks_values, model.parameters()))):
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def untrained(model: nn.Module, accumulated: Literal["none", "held", "all"] = "none") -> Iterator[None]:
    """Backward passes inside leave no trace either, hooks that act on a gradient's arrival do not run, and a model in
    evaluation trains.

    Args:
        accumulated: the gradients that are there as it begins: none, those that are there now, or those of all
            trainable parameters. Passes add to them; they are put back from copies on the CPU.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [(parameter, parameter.grad, parameter._post_accumulate_grad_hooks or {}) for parameter in trained]
    arrived = [dict(hooks) for _, _, hooks in before]
    copies = [
        None if parameter.grad is None else parameter.grad.to("cpu", copy=True)
        for parameter in trained
        if accumulated != "none"
    ]
    try:
        for parameter, _, hooks in before:
            hooks.clear()
            if accumulated == "none":
                parameter.grad = None
            elif accumulated == "all" and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with undisturbed(model), torch.enable_grad():
            if not model.training:
                model.train()
            yield
    finally:
        for (parameter, gradient, hooks), own_hooks in zip(before, arrived, strict=True):
            parameter.grad = gradient
            hooks.update(own_hooks)
        for parameter, copy in zip(trained, copies, strict=False):
            if copy is not None and parameter.grad is not None:
                parameter.grad.copy_(copy)


def lacks_values(tensor: Tensor) -> bool:
    """Tells whether it has a shape alone."""
    return isinstance(tensor, FakeTensor)


def in_precision(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Returns a copy of the model with floating-point tensors of ``dtype``, or of its own where that is None. In
    float64, experts that one kernel without it multiplies together (transformers' ``experts_implementation``) are
    computed one after the other."""
    copied = copy.deepcopy(model).to(dtype)
    for module in copied.modules() if dtype == torch.float64 else ():
        config: Any = vars(module).get("config")
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"
    return copied
