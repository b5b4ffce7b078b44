"""What a recorded step shows of recomputation: which blocks ran when, and that the gradients are a plain pass's.

In the order of the blocks' runs a segment is a stretch that rises: 0 1 2 3, then 2 3 and 0 1 in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from suite.contract.recording import Recording
from suite.contract.trace import Values
from suite.model.anatomy import BlockStack
from techniques.rematerialization.ckpt_chen_sqrt.technique import ChenSqrt

OF_ITS_BASELINES = True  # in stacks whose blocks are all alike
DROPPED = 0.5  # the baselines drop nothing out at the small sizes


def probes(recording: Recording, own: ChenSqrt) -> Mapping[str, float]:
    """``fewest_runs``, ``most_runs``: of a block in the step; ``segments``: over ceil(sqrt(L)), and ``slots``: segments
    and blocks of the longest, over the least that any number of segments gives, each of the stack farthest from 1;
    ``changed``: gradients that are another than a plain pass's by a bit; ``changed_with_dropout``: where dropout
    happens."""
    run, trace = recording.run, recording.trace
    runs, segments, slots = [], [], []
    for stack in run.anatomy.stacks:
        order = _order(stack, trace.ran)
        runs += [order.count(index) for index in range(stack.depth)]
        again = _rising(order[stack.depth :])
        segments.append(len(again) / math.ceil(math.sqrt(stack.depth)))
        least = min(count + math.ceil(stack.depth / count) for count in range(1, stack.depth + 1))
        slots.append((len(again) + max(map(len, again), default=stack.depth)) / least)
    parameters, ours = trace.before.parameters, trace.of("backward")[0].gradients
    with _dropping(run.model):
        dropped = recording.gradients_at(parameters)
        with run.technique.around_step(run):
            recomputed = recording.gradients_at(parameters)
    return {
        "fewest_runs": min(runs),
        "most_runs": max(runs),
        "segments": max(segments, key=lambda value: abs(value - 1)),
        "slots": max(slots),
        "changed": _changed(ours, recording.gradients_at(parameters)),
        "changed_with_dropout": _changed(recomputed, dropped),
    }


def _order(stack: BlockStack, ran: list[str]) -> list[int]:
    """The blocks by number, as they ran; hooks on a block itself would see no more than its segment's ends."""
    numbers = {block.mlp_linears[0].path: number for number, block in enumerate(stack.blocks)}
    return [numbers[name] for name in ran if name in numbers]


def _rising(order: list[int]) -> list[list[int]]:
    stretches: list[list[int]] = []
    for number in order:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return stretches


def _changed(ours: Values, plain: Values) -> int:
    if ours.keys() != plain.keys():
        return len(ours.keys() ^ plain.keys())
    return sum(int((ours[name] != each).sum()) for name, each in plain.items())


@contextmanager
def _dropping(model: nn.Module) -> Iterator[None]:
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    rates = [module.p for module in dropouts]
    for module in dropouts:
        module.p = DROPPED
    try:
        yield
    finally:
        for module, rate in zip(dropouts, rates, strict=True):
            module.p = rate
