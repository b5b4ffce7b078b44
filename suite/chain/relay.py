"""Runs a schedule for several micro-batches at once: blocks outside, micro-batches inside.

Between two moves of weights each micro-batch runs all that the schedule has there, and then the next one does::

    schedule       +w0 f0 >x0 -w0   +w1 f1 >x1 -w1   ...
    micro-batches  +w0 f0 >x0 f0 >x0 f0 >x0 -w0   +w1 f1 >x1 f1 >x1 f1 >x1 -w1   ...

So weights cross the link as often as for one micro-batch. No model's forward has this order: the caller takes the model
apart, and hands each block over as a function of the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, product

from torch import Tensor, nn

from suite.chain.execute import BlockCall, Executor, ModelPass, Slot, Weights
from suite.chain.schedule import Op, Schedule
from suite.chain.tiers import Tier

Layer = Callable[[Tensor], Tensor]
"""A block as a function of the hidden states [batch, tokens, width]."""


class Relay:
    """Runs a stack's forward and backward passes of the micro-batches that :meth:`enter` it."""

    def __init__(
        self, blocks: Sequence[nn.Module], schedule: Schedule, tier: Tier | None, weights: Sequence[Weights]
    ) -> None:
        self.executor = Executor(blocks, schedule, tier, weights=weights)
        self.passes: list[ModelPass] = []

    def enter(self, hidden: Tensor, layers: Sequence[Layer]) -> None:
        """Adds one more micro-batch, whose hidden states go through its own ``layers``."""
        one = ModelPass(self.executor)
        one.calls = [BlockCall(layer) for layer in layers]
        one.activations[0] = Slot(hidden.detach())
        self.passes.append(one)

    def there(self) -> list[Tensor]:
        """Returns the last block's output, by micro-batch."""
        outputs: list[Tensor] = []
        for one, op in self._each(self.executor.schedule.forward):
            if op.computes:
                output: Tensor = one.run(op, first=True)[0]
                outputs += [output] if op.block + 1 == len(self.executor.blocks) else []
                del output
            else:
                one.move(op)
        return outputs

    def back(self, gradients: list[Tensor]) -> None:
        """Runs the backward passes from ``gradients``, of the output by micro-batch, which become those of what
        entered."""
        numbers = {one: number for number, one in enumerate(self.passes)}
        for one, op in self._each(self.executor.schedule.backward):
            if op.kind == "back":
                (gradient,) = one.back(op.block, (gradients[numbers[one]],))
                assert gradient is not None
                gradients[numbers[one]] = gradient
                del gradient
            elif op.computes:
                one.run(op, first=False)
            else:
                one.move(op)

    def _each(self, ops: Iterable[Op]) -> Iterator[tuple[ModelPass, Op]]:
        """Yields what is a micro-batch's own to do, in order; moves of weights are done."""
        for of_weights, group in groupby(ops, lambda op: op.moves_weights):
            between = list(group)
            if of_weights:
                for op in between:
                    self.executor.move_weights(op)
            else:
                yield from product(self.passes, between)
