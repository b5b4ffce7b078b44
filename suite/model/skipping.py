"""Leaves blocks out of a pass: what comes in goes on as it is, and nothing inside them runs.

So such a block costs no FLOPs, saves nothing for the backward pass, and its parameters get no gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from suite.model.calls import Forward, undisturbed
from suite.model.forwards import standing_in
from suite.model.segments import split_hidden

if TYPE_CHECKING:
    from suite.model.anatomy import Block


@contextmanager
def skipping(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """While active, each of ``blocks`` returns the hidden states [batch, tokens, width] that it gets."""
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(standing_in(block, lambda _: _passes))
        yield


def check_skippable(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> None:
    """Raises ValueError where ``model`` could not do without one of the blocks: one that hands on more than hidden
    states (T5's position bias), changes their shape, or stands for several (ALBERT's one block is all)."""
    runs: Counter[str] = Counter()
    others: list[str] = []

    def note(path: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        runs[path] += 1
        if not isinstance(output, Tensor) or output.shape != split_hidden(args, kwargs)[0].shape:
            others.append(path)

    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(model))
        for block in blocks:
            hook = block.module.register_forward_hook(partial(note, block.path), with_kwargs=True)
            stack.callback(hook.remove)
        model.eval()
        forward()
    if others:
        raise ValueError(f"{others[0]} gives more than the hidden states in their own shape: it cannot be left out")
    uneven = [block.path for block in blocks if runs[block.path] != 1]
    if uneven:
        raise ValueError(f"{uneven[0]} runs {runs[uneven[0]]} times in a pass, not once: it cannot be left out alone")


def _passes(*args: Any, **kwargs: Any) -> Tensor:
    return split_hidden(args, kwargs)[0]
