"""Tells what a step of every rank shows of 1-bit SGD: two values a column, which ones, and what is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.communication.onebit_sgd.technique import OneBitSGD
from techniques.communication.shared.probed_step import one_more
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


@judged(
    "received_roundings",
    "The optimizer gets the mean over ranks of gradient and memory, each entry as the mean of those of its column "
    "that have its sign",
    "Section 3",
    id="mean_of_two_values",
    at_most=64.0,  # means of columns of some thousand entries, the sum, and a norm of all gradients
    note="but for the factor of clipping, whose norm is summed in float32",
)
@judged(
    "memory_roundings",
    "What the bits leave out is added to the next gradient, so that after any number of steps what was sent and the "
    "memory add up to the gradients",
    "Section 3: error feedback",
    id="error_feedback",
    at_most=16.0,  # means of columns, and a difference
)
@judged("unequal", "Replicas stay equal to the bit", "Section 3: all apply the same aggregate", id="equal_replicas")
@judged(
    "bytes_over_formula",
    "A rank sends a bit an entry and two values a column to each other one",
    id="bytes",
    equals=1.0,
    kind="counted",
    note=(
        "gathered by all; in the paper's section 3 each of K nodes adds up 1/K of the entries and sends it on in one "
        "bit again, 2 (K - 1) / K bits an entry"
    ),
)
def probes(recording: Recording, own: OneBitSGD) -> Mapping[str, float]:
    """All are of one step, but ``unequal`` of the run's end."""
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
    """Replaces each entry by the mean of those of its column that have its sign, column by column."""
    columns = x.reshape(len(x), -1).T.clone()
    for column in columns:
        for side in (column < 0, column >= 0):
            if side.any():
                column[side] = column[side].mean()
    return columns.T.reshape(x.shape)
