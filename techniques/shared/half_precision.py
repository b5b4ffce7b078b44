"""Autocast inside a model's forward: matrix products in half precision, weights and gradients in float32.

Hooks carry it, so that it holds in training and in evaluation, for copies of the model too, and within a recipe that
has an autocast of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from suite.contract.run import Run
from suite.contract.sites import Act
from suite.contract.technique import Unavailable
from suite.model.anatomy import anatomy


class Autocast:
    """Hooks of a model: its forward runs under ``torch.autocast(device, dtype)``."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.active: list[torch.autocast] = []

    def attach(self, model: nn.Module) -> None:
        """Takes effect from the model's next forward on."""
        model.register_forward_pre_hook(self._enter)
        model.register_forward_hook(self._leave, always_call=True)

    def _enter(self, *_: Any) -> None:
        context = torch.autocast(self.device, self.dtype)
        context.__enter__()
        self.active.append(context)

    def _leave(self, *_: Any) -> None:
        self.active.pop().__exit__(None, None, None)


def cast(model: nn.Module, run: Run, dtype: torch.dtype) -> nn.Module:
    """``model``, whose forward runs under autocast to ``dtype``. Raises Unavailable under torch.compile."""
    if run.recipe.compile:
        raise Unavailable("autocast by hooks breaks a compiled graph in two: take the recipe classic or modern")
    Autocast(run.device.type, dtype).attach(model)
    return model


def noting(run: Run, dtype: torch.dtype, act: Act) -> Act:
    """``act`` is called when a block's linear layer gives ``dtype``, once."""
    handles: list[RemovableHandle] = []

    def note(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dtype == dtype:
            act()
            while handles:  # a copy of the model has the hook too
                handles.pop().remove()

    handles.append(anatomy(run.model).linears[0].module.register_forward_hook(note))
    return act
