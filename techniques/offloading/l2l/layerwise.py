"""Cuts a model's pass at its blocks, so that a loop over layers can be outside of one over micro-batches (``l2l``).

The model's own forward stays what it is. It runs up to a stack of blocks, where the blocks, as functions of the hidden
states, are handed out in place of being run; and it goes on from the outputs that somebody has computed with them::

    enter   embedding ─▶ hidden states, [f_0 f_1 ... f_L]        (between two stacks: from the first one's output)
    loss    the last stack's output ─▶ head ─▶ loss

What a pass draws at random before a cut (masks of a masked auto-encoder, dropout of embeddings) it draws again in the
same way after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from suite.chain.relay import Layer
from suite.device.random_state import RandomState, replayed
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.model.calls import lacks_values, undisturbed
from suite.model.segments import split_hidden

Handle = Callable[[int, int, Layer, Tensor], Tensor]
"""What stands for a block, by the numbers of its stack and itself."""


class NotAChain(ValueError):
    """Is raised where the model's blocks do not run one after the other, each on the hidden states alone."""


class _Reached(Exception):
    """Is raised where a pass has come as far as it is to go."""


def random_state(like: Tensor) -> RandomState | None:
    """Returns the random state now, on the device of ``like``, too; None for tensors without values."""
    return None if lacks_values(like) else RandomState.now(like.device)


def repeated(state: RandomState | None) -> AbstractContextManager[None]:
    """Draws inside are those that came from ``state`` on, where there is one."""
    return nullcontext() if state is None else replayed(state)


@dataclass
class MicroBatch:
    """Holds a part of a batch, its share of the examples, and how far it has come: the output of each stack that it has
    left, and the random state in which its pass began."""

    batch: Batch
    share: float
    outputs: list[Tensor] = field(default_factory=list)
    begun: RandomState | None = None


def micro_batches(batch: Batch, count: int) -> list[MicroBatch]:
    """Splits ``batch`` into ``count`` parts of nearly equal size, at most as many as it has examples."""
    examples = len(next(iter(batch.values())))
    parts = {name: tensor.tensor_split(count) for name, tensor in batch.items()}
    each_part = [{name: part[number] for name, part in parts.items()} for number in range(count)]
    return [MicroBatch(part, len(next(iter(part.values()))) / examples) for part in each_part]


@dataclass
class Cut:
    """Runs the pass of a run's model, cut at its stacks of blocks. Raises NotAChain where that gives another model."""

    run: Run
    extras: dict[tuple[int, int], tuple[Any, ...] | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        stacks = self.run.anatomy.stacks
        wanted = [(s, i) for s, stack in enumerate(stacks) for i in range(stack.depth)]
        order: list[tuple[int, int]] = []

        def note(s: int, i: int, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
            output = function(hidden)
            order.append((s, i))
            self.extras[s, i] = output[1:] if isinstance(output, tuple) else None
            return output

        def check(module: nn.Module, args: Any, kwargs: Any) -> None:
            _, others, named = split_hidden(args, kwargs)
            if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves((others, named))):
                raise NotAChain(
                    f"the blocks of {type(self.run.model).__name__} read more than the hidden states before them "
                    "(cross-attention?), so that they cannot run layer by layer: take zero_infinity_param, which can"
                )

        with ExitStack() as contexts:
            contexts.enter_context(undisturbed(self.run.model))
            for stack in stacks:
                for block in stack.blocks:
                    contexts.callback(block.module.register_forward_pre_hook(check, with_kwargs=True).remove)
            contexts.enter_context(self._wrapped(note))
            self.run.trial(self.run.model)
        if order != wanted:
            raise NotAChain(
                f"the blocks of {type(self.run.model).__name__} do not run once each and in their order, so that they "
                "cannot run layer by layer: take zero_infinity_param, which can"
            )

    def enter(self, micro: MicroBatch, number: int) -> tuple[Tensor, list[Layer]]:
        """Returns what the first block of a stack gets of a micro-batch that has left the stacks before it, and the
        blocks."""
        hidden: list[Tensor] = []
        layers: list[Layer] = []

        def hand_out(s: int, i: int, layer: Layer, entering: Tensor) -> Tensor:
            if s < number:
                return micro.outputs[s]
            hidden.append(entering)
            layers.append(partial(self._layer, layer))
            if i + 1 == self.run.anatomy.stacks[s].depth:
                raise _Reached
            return entering

        state, micro.begun = micro.begun, micro.begun or random_state(next(iter(micro.batch.values())))
        with repeated(state), self.routed(hand_out), self.run.autocast(), suppress(_Reached):
            self.run.baseline.forward(self.run.model, micro.batch)
        entered = hidden.pop(), layers.copy()
        layers.clear()  # which what runs them refers to: a cycle would keep the micro-batch
        return entered

    def loss(self, micro: MicroBatch) -> Tensor:
        """Computes the micro-batch's share in the run's loss, from the outputs of all stacks."""
        with repeated(micro.begun), self.routed(lambda s, i, layer, hidden: micro.outputs[s]):
            return self.run.forward(micro.batch) * micro.share

    @contextmanager
    def routed(self, handle: Handle) -> Iterator[None]:
        """While it is active, ``handle`` stands for every block."""

        def wrapper(s: int, i: int, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
            output = handle(s, i, partial(_hidden, function), hidden)
            extras = self.extras[s, i]
            return output if extras is None else (output, *extras)

        with self._wrapped(wrapper):
            yield

    @contextmanager
    def _wrapped(self, wrapper: Callable[..., Any]) -> Iterator[None]:
        anatomy = self.run.anatomy
        with ExitStack() as contexts:
            for s, stack in enumerate(anatomy.stacks):
                for i in range(stack.depth):
                    contexts.enter_context(anatomy.segmented([(i, i + 1)], partial(wrapper, s, i), stack))
            yield

    def _layer(self, layer: Layer, hidden: Tensor) -> Tensor:
        with self.run.autocast():
            return layer(hidden)


def _hidden(function: Callable[[Tensor], Any], hidden: Tensor) -> Tensor:
    output = function(hidden)
    return output[0] if isinstance(output, tuple) else output
