"""Checks what a recorded step shows of recomputation: which blocks ran when, and that the gradients are a plain pass's.

In the order of the blocks' runs a segment is a stretch that rises: 0 1 2 3, then 2 3 and 0 1 in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.ckpt_chen_sqrt.technique import ChenSqrt
from techniques.shared.recomputation_probes import changed_gradients, order_of

OF_ITS_BASELINES = True  # in stacks whose blocks are all alike


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "Section 3", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a segment runs again",
    "Section 3: recomputation changes no result",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
def probes(recording: Recording, own: ChenSqrt) -> Mapping[str, float]:
    """Claims read ``fewest_runs`` and ``most_runs`` of a block in the step; ``segments`` over ceil(sqrt(L)), and
    ``slots``, segments and blocks of the longest, over the least that any number of segments gives, each of the stack
    farthest from 1."""
    run, trace = recording.run, recording.trace
    runs, segments, slots = [], [], []
    for stack in run.anatomy.stacks:
        order = order_of(stack, trace.ran)
        runs += [order.count(index) for index in range(stack.depth)]
        again = _rising(order[stack.depth :])
        segments.append(len(again) / math.ceil(math.sqrt(stack.depth)))
        least = min(count + math.ceil(stack.depth / count) for count in range(1, stack.depth + 1))
        slots.append((len(again) + max(map(len, again), default=stack.depth)) / least)
    return {
        "fewest_runs": min(runs),
        "most_runs": max(runs),
        "segments": max(segments, key=lambda value: abs(value - 1)),
        "slots": max(slots),
    } | changed_gradients(recording)


def _rising(order: list[int]) -> list[list[int]]:
    stretches: list[list[int]] = []
    for number in order:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return stretches
