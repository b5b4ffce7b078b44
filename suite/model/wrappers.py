"""What stands around a linear layer (:class:`suite.model.anatomy.AroundLinear`), and the layer itself."""

from __future__ import annotations

from suite.model.anatomy import AroundLinear, Part


def innermost(part: Part) -> Part:
    """The linear layer itself, inside all wrappers, with its own path."""
    path, module = part
    while isinstance(module, AroundLinear):
        path, module = f"{path}.linear", module.linear
    return Part(path, module)
