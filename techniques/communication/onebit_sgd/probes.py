"""What a step of every rank shows of 1-bit SGD: two values a column, which ones, and what is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from suite.reading.recording import Recording
from techniques.communication.onebit_sgd.technique import OneBitSGD
from techniques.communication.shared.probed_step import one_more
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


def probes(recording: Recording, own: OneBitSGD) -> Mapping[str, float]:
    """Of one step: ``received_roundings`` of the optimizer's gradients from the mean of the ranks' two-valued columns;
    ``memory_roundings`` of what is remembered from what the bits left out; ``bytes_over_formula``: of the message to
    each other rank. ``unequal``: values in which the replicas differ."""
    run = recording.run
    step = one_more(recording, own)
    wanted = step.wanted()
    values = {name: _two_valued(value.double()) for name, value in wanted.items()}
    lost = {name: wanted[name].double() - value for name, value in values.items()}
    sizes = [(value.numel(), value[0].numel() if value.ndim > 1 else 1) for value in wanted.values()]
    message = sum(math.ceil(count / 8) + 8 * columns for count, columns in sizes)
    return {
        "received_roundings": step.received_roundings(step.mean(values)),
        "memory_roundings": step.memory_roundings(lost, wanted),
        "bytes_over_formula": step.sent_bytes / ((run.world_size - 1) * message),
        "unequal": unequal(recording),
    }


def _two_valued(x: Tensor) -> Tensor:
    """Each entry by the mean of those of its column that have its sign, column by column."""
    columns = x.reshape(len(x), -1).T.clone()
    for column in columns:
        for side in (column < 0, column >= 0):
            if side.any():
                column[side] = column[side].mean()
    return columns.T.reshape(x.shape)
