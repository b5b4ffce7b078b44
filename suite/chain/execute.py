"""Executes schedules: any schedule, on the blocks of a real model, with gradients equal to the bit.

The model's own forward loops over its blocks and its own backward pass comes back through them. Each block's call
carries the schedule on to that block; so does the way back::

    model's forward     block 0   block 1   block 2   head, loss
    schedule            f0        f1 -x1    F2 >x0    |
    autograd's way      block 0   block 1   block 2   head
    back                B0        F1 B1     <x0 B2
                             the schedule goes on as far as B1, then block 1's gradient is there

A graph of a block is one of its own, cut from the model's at the block's inputs; its backward pass runs within the
model's. A block that runs again finds the random state, the autocast mode and the running statistics of its first run.
What the second tier gets are whole storages, once each, however many views autograd saves.

Weights that a schedule loads are their owner's to move (:class:`Weights`): the executor says when.

What leaves a block by another way than its output would lose its gradient here: the backward pass that meets it raises
SegmentError, before any update. On autograd's own graph (:mod:`suite.chain.rerun`) it has one; only this executor has
weights that are loaded, micro-batches inside blocks, and schedules that are no trees of runs.

A block's other arguments (masks, positions, the encoder's outputs) stay as they were given; their gradients flow. Where
several blocks read one that has a gradient, its terms are added block by block: equal up to rounding. So are those of
a weight that several blocks share, under autocast: each run casts it for itself, so that its terms are added in its own
type, and not, as in a plain pass, in the type of the one cast that all read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_unflatten

from suite.chain.schedule import Op, Schedule, Value
from suite.chain.slots import Packed, Slot, key_of, unpacked
from suite.device.random_state import RandomState, replayed
from suite.meters.storage import storages
from suite.model.forwards import standing_in
from suite.model.segments import Replays, SegmentError, split_hidden, without_cache

if TYPE_CHECKING:
    from suite.chain.tiers import Tier

Acted = Callable[[], None]
"""Hears of each thing that a plain pass does not do: a second run of a block, a value that leaves."""


def unheard() -> None:
    """Does nothing: whoever asks for no count hears by it."""


class Weights(Protocol):
    """Holds a block's parameters, whose values a second tier has and keeps.

    What reads a parameter finds its values whether they are loaded or not; a graph must not hold what was loaded.
    """

    def fetch(self) -> None:
        """Starts their way to the device."""

    def load(self) -> None:
        """Has them on the device until :meth:`free`, and waits for them; again, it changes nothing."""

    def free(self) -> None:
        """Takes them off the device, and the gradients that they have."""


@contextmanager
def executed(
    blocks: Sequence[nn.Module],
    schedule: Schedule,
    tier: Tier | None = None,
    acted: Acted = unheard,
    name: str = "the stack",
    weights: Sequence[Weights] = (),
) -> Iterator[None]:
    """While active, ``schedule`` says how the forward and backward passes of ``blocks`` run.

    ``tier`` takes what the schedule offloads. ``weights``: each block's, where the schedule loads
    some; they leave with the context. Without gradients the blocks run as ever.

    Raises SegmentError, in the model's forward, where blocks run in another order than theirs, or where a block does
    not get what the one before it gave; ValueError for a schedule of another depth, or that moves values without a
    tier, or weights that are not passed.
    """
    executor = Executor(blocks, schedule, tier, acted, name, weights)
    try:
        with ExitStack() as stack:
            for index, block in enumerate(blocks):
                stack.enter_context(standing_in(block, partial(executor.called, index)))
            yield
    finally:
        for weight in executor.weights.values():  # of a pass that did not end
            weight.free()


LEFT = (
    "a tensor left a block by another way than its output (an attribute, a hook, a closure), and this schedule would "
    "lose its gradient; leave it out of the loss, or take a technique that moves nothing"
)

AGAIN = (
    "this schedule has gone back through its blocks already and keeps nothing for a second backward pass; run the "
    "forward pass again, or take a technique that moves nothing"
)

WRITES = re.compile(r"is a view and is being modified inplace|a leaf Variable that requires grad .*in-place")


def _lost(_: Any) -> Tensor:
    raise SegmentError(LEFT)


class _Box:
    """Holds a gradient where it ends up, once its block's backward pass is ``due``."""

    gradient: Tensor | None = None
    due = False


class _Entry(torch.autograd.Function):
    """Takes the hidden states as a block's graph begins: unlike a leaf, it does not keep them."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, hidden: Tensor, box: _Box) -> Tensor:
        ctx.box = box
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None, None]:
        if not ctx.box.due:
            raise SegmentError(LEFT)
        (ctx.box.gradient,) = gradients
        return None, None, None


class Graph:
    """Describes a block's own graph: where it begins, where it ends, and its tensors in the order in which they were
    saved."""

    def __init__(self) -> None:
        self.input: Slot | None = None
        self.box = _Box()
        self.others: list[Tensor] = []
        self.ends: list[GradientEdge | None] = []
        self.slots: list[Slot] = []
        self.holds_output = False


class BlockCall:
    """Records a block's call by the model: everything but the hidden states."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        index: int = 0,
    ) -> None:
        self.function = function
        args = tuple(without_cache(value, index) for value in args)
        kwargs = {key: without_cache(value, index) for key, value in (kwargs or {}).items()}
        self.leaves, self.form = tree_flatten((args, kwargs))
        self.flowing = [n for n, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    @property
    def differentiable(self) -> list[Tensor]:
        return [self.leaves[n] for n in self.flowing]

    def __call__(self, hidden: Tensor, differentiable: Sequence[Tensor]) -> Any:
        """Returns the block's output, with these in the places of the arguments that gradients flow to."""
        leaves = list(self.leaves)
        for n, tensor in zip(self.flowing, differentiable, strict=True):
            leaves[n] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        return self.function(hidden, *args, **kwargs)


class Executor:
    """Holds what all passes under one schedule share. Raises ValueError as :func:`executed`."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        schedule: Schedule,
        tier: Tier | None,
        acted: Acted = unheard,
        name: str = "the stack",
        weights: Sequence[Weights] = (),
    ) -> None:
        if schedule.depth != len(blocks):
            raise ValueError(f"a schedule of {schedule.depth} blocks does not fit {name} of {len(blocks)}")
        if schedule.moves and tier is None:
            raise ValueError("this schedule moves values to a second tier: pass one")
        if schedule.loaded and len(weights) != len(blocks):
            raise ValueError(
                f"this schedule loads weights: pass those of all {len(blocks)} blocks, not of {len(weights)}"
            )
        self.blocks, self.schedule, self.tier, self.acted = blocks, schedule, tier, acted
        self.name = name
        self.weights = {block: weights[block] for block in schedule.loaded}
        self.leaving = {op.value for op in schedule.ops if op.kind == "offload"}
        self.moving = {value.block for value in self.leaving}
        self.again = {block for block in range(schedule.depth) if schedule.runs(block) > 1}
        self.current: ModelPass | None = None

    def called(self, index: int, before: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for a block's forward ``before``."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return before(*args, **kwargs)
            hidden, args, kwargs = split_hidden(args, kwargs)
            if index == 0:
                self.current = ModelPass(self)
            if self.current is None or self.current.due != index:
                raise SegmentError(
                    f"block {index} of {self.name} runs out of order, so that no schedule holds; leave out what skips "
                    "or repeats blocks, or take a technique that plans no schedule"
                )
            return self.current.forward(index, hidden, BlockCall(before, args, kwargs, index))

        return forward

    def move_weights(self, op: Op) -> None:
        if op.kind == "load":
            self.weights[op.block].fetch()
        else:
            self.weights[op.block].free()


class ModelPass:
    """Runs one forward pass of the model, and its backward pass.

    ``activations`` and ``graphs`` are what the schedule keeps now, by block.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.ops = list(executor.schedule.ops)
        self.position = 0
        self.due = 0
        self.calls: list[BlockCall] = []
        self.activations: dict[int, Slot] = {}
        self.graphs: dict[int, Graph] = {}
        self.random: dict[int, RandomState] = {}
        self.autocast: dict[int, tuple[str, torch.dtype, bool]] = {}
        self.replays = [Replays(list(block.modules())) for block in executor.blocks]
        self.passed: Tensor | None = None  # what the last block gave to the model
        self.output: list[Any] = []
        self.form: Any = None

    # the way there ------------------------------------------------------------------------------------------------

    def forward(self, index: int, hidden: Tensor, call: BlockCall) -> Any:
        if index and hidden is not self.passed:
            raise SegmentError(
                f"the model changes the hidden states before block {index} of {self.executor.name}, so that its blocks "
                "are no chain; take a technique that recomputes each block by itself, or leave out what changes them"
            )
        self.calls.append(call)
        anchor = torch.empty(0, requires_grad=True)
        outputs = _BlockFunction.apply(self, index, anchor, hidden, *call.differentiable)
        leaves, tensors = list(self.output), iter(outputs)
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in leaves]
        self.output = []
        output = tree_unflatten(leaves, self.form)
        self.passed = output[0] if isinstance(output, tuple) else output
        self.due = index + 1
        if self.due == len(self.executor.blocks):
            self.passed = None
            self.executor.current = None
        return output

    def go_there(self, index: int, hidden: Tensor) -> tuple[Tensor, ...]:
        """Does block ``index``'s first run, and what follows it up to the next block's."""
        self.activations.setdefault(index, Slot(hidden.detach()))
        outputs: list[Any] = []
        while self.position < len(self.ops):
            op = self.ops[self.position]
            if op.kind == "turn" or (op.computes and op.block != index):
                break
            self.position += 1
            if op.computes:
                outputs = self.run(op, first=True)
            else:
                self.move(op)
        for block, slot in self.activations.items():
            if block <= index:
                slot.keep()
        self.output = [_TENSOR if isinstance(output, Tensor) else output for output in outputs]
        return tuple(output.detach() for output in outputs if isinstance(output, Tensor))  # these get the model's graph

    # the way back -------------------------------------------------------------------------------------------------

    def go_back(self, index: int, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Follows the schedule as far as block ``index``'s backward pass, or to its end, and returns its result; the
        block's gradients. Raises SegmentError where it has ended."""
        if self.position == len(self.ops):
            raise SegmentError(AGAIN)
        arriving: tuple[Tensor | None, ...] | None = None
        while arriving is None or (index == 0 and self.position < len(self.ops)):
            op = self.ops[self.position]
            self.position += 1
            if op.kind == "back":
                assert op.block == index
                arriving = self.back(index, gradients)
            elif op.computes:
                self.executor.acted()
                self.run(op, first=False)
            else:
                self.move(op)
        return arriving

    def back(self, index: int, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        self.load(index)
        graph = self.graphs.pop(index)
        graph.slots.clear()
        graph.input = None  # each tensor lives as long as the backward pass needs it
        flowing = [
            (end, gradient) for end, gradient in zip(graph.ends, gradients, strict=True) if end and gradient is not None
        ]
        if flowing:
            graph.box.due = True
            torch.autograd.backward([end for end, _ in flowing], [gradient for _, gradient in flowing])
        return graph.box.gradient, *(leaf.grad for leaf in graph.others)

    # operations ---------------------------------------------------------------------------------------------------

    def move(self, op: Op) -> None:
        if op.kind == "drop":
            self.activations.pop(op.block, None)
        elif op.kind == "offload":
            assert self.executor.tier is not None
            self.executor.acted()
            self.slot(op.value).offload(self.executor.tier)
        elif op.kind == "prefetch":
            self.slot(op.value).prefetch()
        elif op.kind == "wait":
            self.slot(op.value).wait()
        elif op.moves_weights:
            self.executor.move_weights(op)

    def load(self, index: int) -> None:
        """Waits for a block's weights, if they are on their way."""
        if index in self.executor.weights:
            self.executor.weights[index].load()

    def slot(self, value: Value) -> Slot:
        if value.item is not None:
            return self.graphs[value.block].slots[value.item]
        slot = self.activations.get(value.block) or self.graphs[value.block].input
        assert slot is not None
        return slot

    def run(self, op: Op, first: bool) -> list[Any]:
        """Runs a block's forward pass, with or without its graph, and returns its result; its output's leaves, of which
        tensors have no graph."""
        index, call = op.block, self.calls[op.block]
        self.load(index)
        hidden = self.activations[index].get()
        with self.as_at_first(index, hidden, first), self.replays[index].run(), self.unwritten(index):
            if op.kind == "run":
                leaves = self.pass_through(hidden, call)
            else:
                leaves = self.save(index, hidden, call)
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.activations[index + 1] = self.shared(index, leaves[0])
        return leaves

    @contextmanager
    def unwritten(self, index: int) -> Iterator[None]:
        """Says of a block that writes in place to what it gets what autograd says of a view of it."""
        try:
            yield
        except RuntimeError as error:
            if not WRITES.search(str(error)):
                raise
            raise SegmentError(
                f"block {index} of {self.executor.name} writes in place to what it gets, which this schedule reads "
                "again; have the block write elsewhere, or take a technique that moves nothing"
            ) from error

    def pass_through(self, hidden: Tensor, call: BlockCall) -> list[Any]:
        """Does a forward pass whose graph keeps nothing: whoever comes back through it met what left the block."""
        others = [argument.detach().requires_grad_() for argument in call.differentiable]
        with torch.enable_grad(), saved_tensors_hooks(lambda _: None, _lost):
            begun = _Entry.apply(torch.empty(0, requires_grad=True), hidden, _Box())
            leaves, self.form = tree_flatten(call(begun, others))
        return leaves

    def save(self, index: int, hidden: Tensor, call: BlockCall) -> list[Any]:
        graph = self.graphs[index] = Graph()
        graph.others = [argument.detach().requires_grad_() for argument in call.differentiable]
        with torch.enable_grad(), self.packing(index, graph):
            begun = _Entry.apply(torch.empty(0, requires_grad=True), hidden, graph.box)
            leaves, self.form = tree_flatten(call(begun, graph.others))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        graph.ends = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in tensors]
        return leaves

    @contextmanager
    def packing(self, index: int, graph: Graph) -> Iterator[None]:
        """Gives each storage that a block saves a slot, where the schedule moves some of them."""
        moving = self.executor.moving
        if not (index in moving or index + 1 in moving):
            yield
            return
        block = self.executor.blocks[index]
        stay = [*block.parameters(), *block.buffers(), *filter(torch.is_tensor, self.calls[index].leaves)]
        staying = {storage._cdata for tensor in stay for storage in storages(tensor)}
        slots = {key_of(self.activations[index].get()): self.activations[index]}

        def pack(tensor: Tensor) -> Any:
            if is_traceable_wrapper_subclass(tensor):  # a parameter whose values are elsewhere has no storage
                return tensor
            if tensor.layout is not torch.strided or any(s._cdata in staying for s in storages(tensor)):
                return tensor
            key = key_of(tensor)
            value = Value(index)
            if slots.get(key) is self.activations[index]:
                graph.input = slots[key]
            if key not in slots:
                slots[key] = Slot(tensor.detach())
                graph.slots.append(slots[key])
            if graph.input is not slots[key]:
                value = Value(index, graph.slots.index(slots[key]))
            packed = Packed(slots[key], tensor.size(), tensor.stride(), int(tensor.storage_offset()))
            return packed.tensor if value in self.executor.leaving else packed  # a meter counts what stays

        with saved_tensors_hooks(pack, unpacked):
            yield
        slots.clear()  # autograd keeps the hooks

    def shared(self, index: int, output: Tensor) -> Slot:
        """Returns the slot of a block's output: the graph's, where the graph has saved it."""
        graph = self.graphs.get(index)
        for slot in graph.slots if graph else ():
            if slot.tensor is not None and key_of(slot.tensor) == key_of(output):
                graph.slots.remove(slot)  # type: ignore[union-attr]
                graph.holds_output = True  # type: ignore[union-attr]
                slot.tensor = output
                return slot
        return Slot(output)

    @contextmanager
    def as_at_first(self, index: int, hidden: Tensor, first: bool) -> Iterator[None]:
        """Has the random state and the autocast mode of the block's first run."""
        kind = hidden.device.type
        if first:
            dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            self.autocast[index] = kind, dtype, enabled
            if index in self.executor.again:
                self.random[index] = RandomState.now(hidden.device)
        kind, dtype, enabled = self.autocast[index]
        with ExitStack() as stack:
            if not first:
                stack.enter_context(replayed(self.random[index]))
            if enabled:  # a cached cast of a weight would outlive the run, or come from one without a graph
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield


_TENSOR = object()


class _BlockFunction(torch.autograd.Function):
    """Puts a block into the model's graph as one function."""

    @staticmethod
    def forward(ctx: Any, one: ModelPass, index: int, anchor: Tensor, hidden: Tensor, *others: Tensor) -> Any:
        ctx.one, ctx.index = one, index
        ctx.set_materialize_grads(False)
        outputs = one.go_there(index, hidden)
        ctx.mark_non_differentiable(*(output for output in outputs if not output.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None, *ctx.one.go_back(ctx.index, gradients)
