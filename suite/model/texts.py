"""Finds where a text comes into a model: the module that takes its tokens, and the positions at which it is read.

By transformers' own conventions: a text model has ``get_input_embeddings``, takes ``inputs_embeds`` in place of
``input_ids``, and, where a table of positions is learned, mostly ``position_ids``.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.model.anatomy import Anatomy
from suite.model.calls import Forward, lacks_values, undisturbed


class TextInput(NamedTuple):
    """Holds the module that a text's tokens come into, and the embedding table that they are looked up in."""

    module: nn.Module
    table: nn.Module


def text_input(model: nn.Module) -> TextInput:
    """Finds where embeddings could take the place of tokens. Raises ValueError where they could not."""
    for module in model.modules():
        if hasattr(module, "get_input_embeddings") and "inputs_embeds" in _arguments(module):
            return TextInput(module, module.get_input_embeddings())  # type: ignore[operator]
    raise ValueError(
        f"{type(model).__name__} takes no embeddings in place of tokens (inputs_embeds), so that nothing can stand "
        "before its text: use a text model of transformers"
    )


def text_positions(parts: Anatomy, forward: Forward) -> Tensor | None:
    """Returns the rows int64 [1, tokens] of a learned table in which the model looks up the positions of a text that
    ``forward`` shows it. None where it has no such table, or takes no ``position_ids``."""
    module, tokens = text_input(parts.model)
    if "position_ids" not in _arguments(module):
        return None
    looked_up: list[tuple[nn.Module, Tensor]] = []
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(parts.model))
        for _, table in parts.embeddings:
            if table is not tokens:
                hook = table.register_forward_pre_hook(lambda table, args: looked_up.append((table, args[0])))
                stack.callback(hook.remove)
        forward()
    return next((rows[:1] for table, rows in looked_up if _one_after_the_other(table, rows)), None)


def _arguments(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _one_after_the_other(table: Any, rows: Tensor) -> bool:
    """Tells whether rows of a table are looked up in their order; of tensors without values, whether they may be."""
    if rows.ndim != 2 or rows.is_floating_point():
        return False
    if lacks_values(rows):
        return int(table.num_embeddings) >= rows.shape[1]
    return bool((rows.diff(dim=1) == 1).all())
