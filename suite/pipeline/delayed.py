"""Trains with delayed weights in one process: what an asynchronous pipeline computes, without any pipeline.

The parameters of stage i are read d_i updates late, in the forward pass and, perhaps by other numbers, in the backward
pass (Narayanan et al., SOSP 2019, section 3.3; Yang et al., MLSys 2021, section 2)::

    w <- w - rate * mean over micro-batches of  grad f(w_1 of version t - d_1, ..., w_p of version t - d_p)

The whole model makes one pass, each stage's parameters at their own version; autograd's backward pass reads what the
parameters hold then. This is a second way to the same numbers: it knows no schedule, no rank and no message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.pipeline.timetable import Delay

Correction = Callable[[str, Tensor, int], Tensor]
"""The weights of a backward pass: of a parameter's name, its newest values, and its stage."""


class Delayed:
    """Trains with delayed weights, by ``stage_of`` a parameter's name; ``delay(stage, place)`` of the micro-batch at a
    place of its batch.

    ``before_step(stage parameters)`` runs for each stage before the optimizer's step: clipping by a stage's own norm.
    """

    def __init__(
        self,
        model: nn.Module,
        stage_of: Mapping[str, int],
        delay: Callable[[int, int], Delay],
        optimizer: Optimizer,
        *,
        correction: Correction | None = None,
        before_step: Callable[[int, Sequence[nn.Parameter]], None] = lambda stage, parameters: None,
    ) -> None:
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if name in stage_of}
        self.stage_of, self.delay, self.optimizer = stage_of, delay, optimizer
        self.correction, self.before_step = correction, before_step
        self.history: deque[dict[str, Tensor]] = deque([self._copy()])
        self.updates = 0

    def _copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def _at(self, name: str, late: int) -> Tensor:
        """Returns the values that a parameter had ``late`` updates ago; the first ones before there were as many."""
        return self.history[max(0, len(self.history) - 1 - late)][name]

    def step(self, losses: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Makes one update by the mean gradient of a batch's micro-batches, and returns what they gave; their
        losses."""
        self.optimizer.zero_grad(set_to_none=True)
        newest, loss_values = self.history[-1], []
        for place, loss_of in enumerate(losses):
            late = {name: self.delay(self.stage_of[name], place) for name in self.parameters}
            self._fill({name: self._at(name, delay.forward) for name, delay in late.items()})
            loss = loss_of()
            backward = {name: self._at(name, delay.backward) for name, delay in late.items()}
            if self.correction is not None:
                backward = {name: self.correction(name, value, self.stage_of[name]) for name, value in backward.items()}
            self._fill(backward)
            (loss / len(losses)).backward()
            loss_values.append(loss.item())
        self._fill(newest)
        for stage in sorted(set(self.stage_of.values())):
            own = [parameter for name, parameter in self.parameters.items() if self.stage_of[name] == stage]
            self.before_step(stage, own)
        self.optimizer.step()
        self.updates += 1
        self.history.append(self._copy())
        return loss_values

    def _fill(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.data.copy_(values[name])
