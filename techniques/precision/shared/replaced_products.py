"""Holds what techniques share that compute the products of linear layers in their own way."""

from __future__ import annotations

from torch import nn

from suite.model.anatomy import Part, innermost, is_transposed


def plain_linear(part: Part, technique: str) -> Part:
    """Returns the linear layer itself, where others' wrappers (adapters, branch scales) stand around it.

    Raises ValueError where it is none that computes x W^T + b.
    """
    part = innermost(part)
    if type(part.module).forward is not nn.Linear.forward and not is_transposed(part.module):
        raise ValueError(
            f"{technique} replaces the products of nn.Linear and of Conv1D, and {part.path} is a "
            f"{type(part.module).__name__}, which computes in its own way: leave {technique} out"
        )
    return part
