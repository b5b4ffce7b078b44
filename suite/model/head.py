"""Finds a model's head: the modules that make its logits of its last hidden states, from the first matrix on.

::

    blocks ── [norm] ── hidden states ──┤ dense ─ activation ─ norm ─ projection ├── logits

Names do not say which these are, nor how many (BERT has one, DistilBERT four in a row). One pass does: a module belongs
to the head if the next one reads what it gives, and nothing is done in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.model.anatomy import Part
from suite.model.calls import Forward, lacks_values, undisturbed

if TYPE_CHECKING:
    from suite.model.anatomy import Anatomy


class Head(NamedTuple):
    """Holds ``parts`` that run one after the other, each on what the one before gives; ``classes`` logits come out."""

    parts: tuple[Part, ...]
    classes: int


class _Ran(NamedTuple):
    part: Part
    argument: Tensor | None
    output: Tensor


def head_of(parts: Anatomy, forward: Forward) -> Head:
    """Returns the head of a model whose outputs have ``logits`` [..., classes].

    Raises ValueError where there is none, or where it does not treat each position by itself and always alike.
    """
    logits, ran = _pass(parts, forward)
    chain: list[_Ran] = []
    wanted: Tensor | None = logits
    before = len(ran)
    while (at := _maker(ran[:before], wanted)) is not None and ran[at].argument is not None:
        chain.insert(0, ran[at])
        wanted, before = ran[at].argument, at
    while chain and not any(parameter.ndim >= 2 for parameter in chain[0].part.module.parameters()):
        chain.pop(0)
    if not chain:
        raise ValueError(
            f"cannot tell what makes the logits of {type(parts.model).__name__}: no module outside of its blocks gives "
            "them; use a model whose output layer is its last step"
        )
    _check_by_position(parts.model, [traced.part for traced in chain], chain[0].argument)
    return Head(tuple(traced.part for traced in chain), logits.shape[-1])


def _pass(parts: Anatomy, forward: Forward) -> tuple[Tensor, list[_Ran]]:
    """Returns the logits of a pass in evaluation, and what ran beside the blocks, in the order in which it ended."""
    ran: list[_Ran] = []

    def note(part: Part, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
        alone = len(tensors) == len(args) + len(kwargs) == 1
        if isinstance(output, Tensor):
            ran.append(_Ran(part, tensors[0] if alone else None, output))

    paths = [stack.path for stack in parts.stacks]
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(parts.model))
        for path, module in parts.model.named_modules():
            if (
                not any(f"{of_stack}.".startswith(f"{path}.") or path.startswith(f"{of_stack}.") for of_stack in paths)
                and path
            ):
                hook = module.register_forward_hook(partial(note, Part(path, module)), with_kwargs=True)
                stack.callback(hook.remove)
        parts.model.eval()
        return forward().logits, ran


def _maker(ran: Sequence[_Ran], tensor: Tensor | None) -> int | None:
    """Returns the outermost module that gave the tensor: of those inside one another it ended last."""
    return next((at for at in reversed(range(len(ran))) if ran[at].output is tensor), None)


def _check_by_position(model: nn.Module, chain: Sequence[Part], hidden: Tensor | None) -> None:
    assert hidden is not None
    if lacks_values(hidden):
        return
    with torch.no_grad(), undisturbed(model):
        model.train()  # dropout, too, would make of a part what the whole does not have
        hidden = hidden.to(next(chain[0].module.parameters()).dtype)
        whole, part = hidden, hidden[:, 1::2]
        for _, module in chain:
            whole, part = module(whole), module(part)
    if not torch.allclose(whole[:, 1::2], part, rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"{chain[0].path} and what follows do not make the same of some positions as of all: it mixes them, or "
            "draws random numbers (set its dropout to 0)"
        )
