"""Finds what a residual stream begins with: the parameters, outside of all blocks, that make a first block's hidden
states.

Names do not say whether these are tables of tokens and positions, a projection of patches beside fixed positions, or a
layer between an encoder and a decoder. What depends on what does: one pass of the model shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.model.calls import Forward, lacks_values, undisturbed
from suite.model.segments import split_hidden

if TYPE_CHECKING:
    from suite.model.anatomy import BlockStack


SAME = 0.02  # of hidden states: over the roundings of bfloat16, and under what another power of a factor makes of them


class Beginning(NamedTuple):
    """Holds the hidden states [batch, tokens, width] that a stack's first block gets, and the parameters that make
    them."""

    hidden: Tensor
    parameters: tuple[nn.Parameter, ...]


def beginnings(model: nn.Module, stacks: Sequence[BlockStack], forward: Forward) -> list[Beginning]:
    """Returns what the stream of each stack begins with, in the model's order; what an earlier stream begins with is
    left out (a decoder may have the encoder's embedding). Raises ValueError where a stack does not run."""
    inside = {id(parameter) for stack in stacks for parameter in stack.container.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    hidden: dict[str, Tensor] = {}
    with ExitStack() as context:
        context.enter_context(torch.enable_grad())
        context.enter_context(undisturbed(model))
        for frozen in (parameter for parameter in outside if not parameter.requires_grad):
            frozen.requires_grad_()
            context.callback(frozen.requires_grad_, False)
        for stack in stacks:

            def note(_: nn.Module, args: Any, kwargs: Any, path: str = stack.path) -> None:
                hidden[path] = split_hidden(args, kwargs)[0]

            handle = stack.blocks[0].module.register_forward_pre_hook(note, with_kwargs=True)
            context.callback(handle.remove)
        model.eval()
        forward()
        if idle := [stack.path for stack in stacks if stack.path not in hidden]:
            raise ValueError(f"{idle[0]} did not run, so that nothing tells what its stream begins with")
        taken: set[int] = set()
        starts = []
        for stack in stacks:
            free = [parameter for parameter in outside if id(parameter) not in taken]
            start = hidden[stack.path].sum()
            gradients = torch.autograd.grad(start, free, retain_graph=True, allow_unused=True) if free else ()
            makers = tuple(
                parameter for parameter, gradient in zip(free, gradients, strict=True) if gradient is not None
            )
            taken |= {id(maker) for maker in makers}
            starts.append(Beginning(hidden[stack.path].detach(), makers))
    return starts


@torch.no_grad()
def scale_beginnings(
    model: nn.Module, stacks: Sequence[BlockStack], factors: Sequence[float], forward: Forward
) -> None:
    """Multiplies what each stack's stream begins with by its factor, through the parameters that make it.

    Raises ValueError where these do not make a sum, so that their factor is not the sum's (two matrices in a row).
    """
    for number, (stack, factor) in enumerate(zip(stacks, factors, strict=True)):
        before, parameters = beginnings(model, stacks, forward)[number]
        for parameter in parameters:
            parameter.mul_(factor)
        after, expected = beginnings(model, stacks, forward)[number].hidden, factor * before
        if parameters and not lacks_values(after) and (after - expected).norm() > SAME * expected.norm():
            raise ValueError(
                f"what {stack.path} begins with is no sum of parameters, so that their factor is not its own: use a "
                "model whose embedding is a sum"
            )
