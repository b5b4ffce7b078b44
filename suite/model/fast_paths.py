"""Finds evaluation by other code than training: torch's encoder then reads its layers' weights and calls none of them.

A layer that stands in for one of them would train and be left out afterwards. So torch's fast paths are off in a model
whose layers are replaced, and what a model's own code leaves out in evaluation is told.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from suite.model.anatomy import is_linear
from suite.model.calls import Forward, undisturbed

FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
BEFORE = "fast_path_before"  # an attribute of such a module, while it runs


def without_fast_paths(model: nn.Module) -> None:
    """Has torch's encoders and attentions within ``model`` call their layers in evaluation, too, from now on."""
    for module in model.modules():
        if isinstance(module, FAST) and _off not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_off)
            module.register_forward_hook(_as_before, always_call=True)


def called_in_evaluation(layer: nn.Module) -> None:
    """Has a torch encoder that ``layer`` is put into call it in evaluation, too: a hook turns the fast path off."""
    layer.register_forward_pre_hook(_nothing)


def left_out(model: nn.Module, own: Collection[int], forward: Forward) -> list[str]:
    """Returns the stand-ins for linear layers, by path, that run in training and not in evaluation. ``own`` are the ids
    of modules that are none; ``forward`` passes examples through ``model``."""
    stand_ins = {path: each for path, each in model.named_modules() if id(each) not in own and is_linear(each)}
    if not stand_ins:
        return []
    ran: dict[bool, set[str]] = {True: set(), False: set()}
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(model))
        for path, each in stand_ins.items():
            handle = each.register_forward_pre_hook(lambda *_, path=path: ran[model.training].add(path))
            stack.callback(handle.remove)
        for training in (False, True):
            if len(ran[False]) < len(stand_ins):
                model.train(training)
                forward()
    return [path for path in stand_ins if path in ran[True] - ran[False]]


def _off(module: nn.Module, _: Any) -> None:
    vars(module).setdefault(BEFORE, []).append(torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)


def _as_before(module: nn.Module, *_: Any) -> None:
    torch.backends.mha.set_fastpath_enabled(vars(module)[BEFORE].pop())


def _nothing(*_: Any) -> None:
    """Does nothing, since a hook's presence is what counts."""
