"""Implements Adam whose second moment stands still from some step on: the optimizer of 1-bit Adam (2102.02888,
Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suite.kernels.optimizer import rate_of
from techniques.shared.adam import Adam


def frozen_step(
    parameter: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: float,
    frozen_at: float,
    *,
    learning_rate: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Takes AdamW's step number ``step`` along a given first moment, in place on ``parameter``; the second moment is
    that of the step ``frozen_at``, with that one's bias correction. An entry whose second moment is 0 has never had a
    gradient and stays where it is: a sign would move it by a whole step over ``eps``."""
    parameter.mul_(1 - learning_rate * weight_decay)
    deviation = (second_moment.sqrt() / math.sqrt(1 - beta2**frozen_at)).add_(eps)
    direction = torch.where(second_moment > 0, first_moment / deviation, 0.0)
    parameter.sub_(direction * (learning_rate / (1 - beta1**step)))


class FrozenAdam(Adam):
    """Takes AdamW's steps until :meth:`freeze`; then a step goes along ``first_moment`` of the state as it stands,
    whatever the gradients are: who exchanges it has put it there."""

    def freeze(self, step: int) -> None:
        """Keeps the second moment as it is after ``step`` steps."""
        for group in self.param_groups:
            group["frozen_at"] = step

    @property
    def frozen(self) -> bool:
        return self.param_groups[0].get("frozen_at") is not None

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        if group.get("frozen_at") is None:
            super().update(group, parameters, values, gradients)
            return
        beta1, beta2 = group["betas"]
        hyper = {"learning_rate": rate_of(group), "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
        moments = self.buffers(parameters, "first_moment"), self.buffers(parameters, "second_moment")
        for value, first, second in zip(values, *moments, strict=True):
            step = self.step_of(parameters).item()
            frozen_step(value, first, second, step, group["frozen_at"], weight_decay=group["weight_decay"], **hyper)

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        return group.get("frozen_at") is None and super().launches(group, parameters)
