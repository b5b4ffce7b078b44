"""Tells whether a model's attention runs fused, seen in one pass, and why not where it does not.

A model that calls ``scaled_dot_product_attention`` has asked for a fused kernel. Torch then looks at the device, the
mask, the dropout and the sizes, and without a word computes the scores one by one where no kernel takes them. What it
chose shows in the operators that the call comes down to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from suite.model.anatomy import Block
from suite.model.calls import Forward, undisturbed

FUSED = re.compile(r"_scaled_dot_product_(?!attention_math)\w*attention|_flash_attention|_efficient_attention")


def unfused_attention(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> dict[str, str]:
    """Returns the blocks whose attention, while training, is not fused throughout, by path, with the reason; a hybrid's
    blocks without attention are none of them."""
    blocks = [block for block in blocks if block.attends]
    calls: dict[str, list[str]] = {block.path: [] for block in blocks}
    inside: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model))
        stack.enter_context(torch.enable_grad())
        for block in blocks:
            before = block.module.register_forward_pre_hook(lambda *_, path=block.path: inside.append(path))
            after = block.module.register_forward_hook(lambda *_: inside.pop() and None, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        stack.enter_context(_Calls(lambda reason: calls[inside[-1]].append(reason) if inside else None))
        model.train()
        forward()
    reasons = {path: next(filter(None, answers), "") for path, answers in calls.items()}
    return {path: reasons[path] or OWN_CODE for path in calls if reasons[path] or not calls[path]}


OWN_CODE = "its code computes the scores itself"


class _Calls(TorchFunctionMode):
    """While active, tells why each scaled_dot_product_attention is not fused, or "" of one that is."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with _Operators() as operators:
            output = func(*args, **kwargs)
        self.tell("" if any(map(FUSED.search, operators.names)) else _reason(*args, **kwargs))
        return output


class _Operators(TorchDispatchMode):
    """While active, collects the operators' names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def _reason(query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> str:
    settings = dict(zip(("attn_mask", "dropout_p"), more, strict=False)) | named
    mask, dropout = settings.get("attn_mask"), settings.get("dropout_p")
    where = f"torch has no fused kernel on {query.device.type}"
    if dropout:
        return f"{where} with attention dropout, which is {dropout:g} here"
    if mask is not None and mask.requires_grad:
        return f"{where} for a mask that learns, as its position bias does"
    return f"{where} for these sizes and layouts (queries {list(query.shape)}, values {list(value.shape)}) and its mask"
