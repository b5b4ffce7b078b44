"""Measures how far rounding alone parts a run from itself: every weight moved by one unit in the last place, and what
follows.

Another CPU, BLAS or accelerator adds up in another order. That moves the first loss by a unit in its last place or two,
and training makes more of it, step by step, as much as it makes of a moved weight. So runs whose weights were moved by
one unit say how far two runs may part for that reason, without another machine.
"""

from __future__ import annotations

import torch
from torch import nn

from suite.loop.data import generator
from suite.measure.contenders.contender import Contender, Limits
from suite.record.job import Job

NUDGES = 3


def nudge_weights(model: nn.Module, nudge: int) -> None:
    """Moves every floating-point parameter by one unit in its last place, up or down as the number draws."""
    coins = generator(nudge)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                up = (torch.rand(parameter.shape, generator=coins) < 0.5).to(parameter.device)
                towards = torch.where(up, torch.inf, -torch.inf).to(parameter)
                parameter.copy_(torch.nextafter(parameter, towards))


def nudged_losses(job: Job, steps: int, limits: Limits = Limits()) -> list[list[float]]:  # noqa: B008  it is frozen
    """Returns the training losses of the job's first ``steps`` steps, [NUDGES, steps], each time with weights moved
    otherwise.

    Raises ContenderFailed.
    """
    runs = []
    for nudge in range(1, NUDGES + 1):
        with Contender(job, limits) as contender:
            contender.prepare()
            contender.set_up(nudge=nudge)
            runs.append(contender.block(steps).losses)
    return runs
