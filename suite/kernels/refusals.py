"""Has what optimizers refuse, with a sentence that says what to do instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def at_least_0(*numbers: float | Tensor) -> bool:
    """Tells whether all are finite and 0 or more; a NaN is neither."""
    return all(0 <= float(number) < math.inf for number in numbers)


def refuse_complex(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Raises TypeError where a parameter is complex."""
    if any(parameter.is_complex() for parameter in parameters):
        raise TypeError(f"{type(optimizer).__name__} updates real numbers: give torch.view_as_real of complex ones")


def refuse_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Raises TypeError where a gradient is sparse."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (gradient := parameter.grad) is not None and gradient.layout is not torch.strided:
                raise TypeError(
                    f"{type(optimizer).__name__} updates every element, and a gradient of shape "
                    f"{tuple(gradient.shape)} is {gradient.layout}: make it dense (sparse=False of an embedding)"
                )
