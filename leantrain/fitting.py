"""A model of yours within a budget of memory: blocks run a second time where the budget asks for it, and nowhere else.

    >>> fitted = leantrain.fit(model, batch, loss, memory="8GB")  # loss(model, batch) gives a scalar
    >>> print(fitted)                                             # what it will cost, before it is run
    >>> with fitted.step():
    ...     loss(model, batch).backward()

Or, where the loop is a Trainer's or Accelerate's, ``fitted.install()`` before it and ``fitted.remove()`` after it. The
model's code stays as it is; so do loss and gradients, to the bit. A pass, watched block by block, says what each block
costs; a schedule of rotor's (Herrmann, Beaumont et al. 2019) then takes the least time within the budget.

The budget is that of a forward and a backward pass: weights, buffers, batch, gradients, activations, what operators
make for a moment, and the optimizer's state if you name it. Bytes are those of tensors: an allocator's rounding and
kernels' workspaces come on top, and so does what an optimizer makes in its own step. Key-value caches (``use_cache``)
do not enter the blocks: a plain pass that fills them adds gradients up in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from leantrain.fitted_plan import FittedPlan, check, chosen, state_of, weight_bytes
from suite.chain.execute import executed
from suite.chain.profile import clocked, profiled
from suite.meters.storage import tensors_within, unique_bytes
from suite.model.anatomy import Anatomy
from suite.model.calls import untrained
from suite.model.segments import SegmentError, split_hidden
from suite.record.amounts import bytes_of

Loss = Callable[[nn.Module, Any], Tensor]
Tensors = dict[str, Tensor]  # that the model gets, by their places in its arguments
Shapes = frozenset[tuple[str, torch.Size, torch.dtype]]


def fit(
    model: nn.Module, batch: Any, loss: Loss, memory: str, *, optimizer: Any = None, accumulate: bool = False,
    seconds: Literal["counted", "clocked"] = "counted",
) -> Fitted:  # fmt: skip
    """The fastest recomputation of the model's blocks whose pass stays within ``memory``; nothing is installed yet.

    Args:
        batch: of the size and on the device that you train with; other shapes are planned as they come.
        loss: ``loss(model, batch)`` calls the model once and gives a scalar, autocast inside or around. Each plan calls
            it a few times, and leaves weights, gradients, buffers, modes and random numbers as they were.
        memory: with its unit, "8GB" or "8GiB".
        optimizer: its state counts in the budget: as it is or, before its first step, as AdamW's 8 bytes a trainable
            parameter.
        accumulate: plan for passes that find earlier ones' gradients. Without it such a pass is planned as it comes.
        seconds: of FLOPs, which give the same plan everywhere, or of the clock, whose passes keep all activations.

    Raises:
        ValueError: an amount without a unit, a budget that cannot be met (with the least that can, and what would
            help), a loss that is no scalar, a model whose blocks are no chain. The model is then as it was.
    """
    fitted = Fitted(model, loss, int(bytes_of(str(memory))), optimizer, accumulate, seconds)
    fitted.plan = fitted._planned(batch, accumulate)
    return fitted


class Fitted:
    """A model and its plans; ``plan`` is of the batch that it was fitted with, ``plans`` has all."""

    plan: FittedPlan

    def __init__(
        self, model: nn.Module, loss: Loss, memory_bytes: int, optimizer: Any, accumulate: bool, seconds: str
    ) -> None:
        check(model, memory_bytes, seconds)
        self.model, self.loss, self.memory_bytes = model, loss, memory_bytes
        self.optimizer, self.accumulate, self.seconds = optimizer, accumulate, seconds
        self.stacks = {stack.path: [each.module for each in stack.blocks] for stack in Anatomy(model).stacks}
        self.plans: dict[tuple[Shapes, bool], FittedPlan] = {}
        self._batches: list[_Batch] = []
        self._given: Any = None  # a step's own batch
        self._planning = False
        self._handles: list[Any] = []
        self._running = ExitStack()

    def __str__(self) -> str:
        return f"{type(self.model).__name__}: {self.plan}"

    @contextmanager
    def step(self, batch: Any = None) -> Iterator[None]:
        """Passes inside run as planned. Name the batch where it is larger than those before, and the loss does not hand
        all of its tensors to the model."""
        installed, self._given = bool(self._handles), batch
        self.install()
        try:
            yield
        finally:
            self._given = None
            if not installed:
                self.remove()

    def install(self) -> None:
        """All passes with gradients run as planned from now on, until :meth:`remove`."""
        if not self._handles:
            self._handles = [
                self.model.register_forward_pre_hook(self._begin, with_kwargs=True),
                self.model.register_forward_hook(self._end, always_call=True),
            ]

    def remove(self) -> None:
        """The model is as it was."""
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if self._planning or not torch.is_grad_enabled():
            return
        tensors = _tensors((args, kwargs))
        key = _shapes(tensors), self.accumulate or any(each.grad is not None for each in self.model.parameters())
        plan = self.plans.get(key) or self._plan_for(key, tensors)
        for path, schedule in plan.schedules.items():
            self._running.enter_context(executed(self.stacks[path][-schedule.depth :], schedule, name=path))

    def _end(self, *_: Any) -> None:
        if not self._planning:
            self._running.close()

    def _plan_for(self, key: tuple[Shapes, bool], tensors: Tensors) -> FittedPlan:
        """Of new shapes: by the step's batch, one made of what the model gets, or a larger one's plan."""
        made = (each.of(tensors) for each in self._batches)
        batch = self._given if self._given is not None else next((each for each in made if each is not None), None)
        if batch is not None:
            return self.plans.setdefault(key, self._planned(batch, key[1]))
        larger = [plan for known, plan in self.plans.items() if _within(key, known)]
        if not larger:
            raise ValueError("the model gets larger tensors than any planned for: name the batch, fitted.step(batch)")
        return self.plans.setdefault(key, min(larger, key=lambda each: each.extra_time))

    def _planned(self, batch: Any, held: bool) -> FittedPlan:
        """Profiles a pass of this batch, and plans all of its shapes; ``held``: it finds gradients."""

        device = next(self.model.parameters()).device
        around = device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)

        def forward() -> Tensor:  # autocast around the loss ends before the way back, and its casts with it
            with torch.autocast(*around):
                value = self.loss(self.model, batch)
            torch.clear_autocast_cache()
            return value

        def loss() -> Tensor:
            if not held:
                self.model.zero_grad()
            value = forward()
            if not value.requires_grad:
                raise ValueError("loss(model, batch) has no gradient: do not detach it, and train some of the model")
            return value

        self._planning = True
        try:
            accumulated: Any = "all" if self.accumulate else "held" if held else "none"
            with untrained(self.model, accumulated), torch.autocast(device.type, enabled=False):
                gradients = unique_bytes(each.grad for each in self.model.parameters() if each.grad is not None)
                tensors, reached = self._looked(forward)
                stacks = list(reached.values())
                chains = profiled(stacks, loss)
                chains = clocked(chains, stacks, loss) if self.seconds == "clocked" else chains
        except SegmentError as error:
            raise SegmentError(f"{type(self.model).__name__} cannot be planned: {error}") from error
        finally:
            self._planning = False
        if held:  # a block's are in what is there already
            chains = [replace(c, stages=tuple(replace(s, gradient_bytes=0) for s in c.stages)) for c in chains]
        resident = {
            "weights": weight_bytes(self.model), "optimizer state": state_of(self.optimizer, self.model),
            "batch": unique_bytes(e for e in tensors_within(batch) if e.device == device), "gradients": gradients,
        }  # fmt: skip
        plan = chosen(self.model, dict(zip(reached, chains, strict=True)), self.memory_bytes, resident)
        self._batches.append(_Batch(batch, tensors))
        return self.plans.setdefault((_shapes(tensors), held), plan)

    def _looked(self, forward: Callable[[], Tensor]) -> tuple[Tensors, dict[str, list[nn.Module]]]:
        """The tensors that the model gets, and the stacks that run, without first blocks that no gradient reaches."""
        calls: list[Tensors] = []
        ran: dict[str, list[nn.Module]] = {}

        def called(_: nn.Module, *given: Any) -> None:
            calls.append(_tensors(given))
            torch.set_grad_enabled(True)  # as far as the first block, to see whether its input has a gradient

        def began(_: nn.Module, args: Any, kwargs: Any, path: str) -> None:
            reached = bool(ran) or split_hidden(args, kwargs)[0].requires_grad
            trained = [any(each.requires_grad for each in block.parameters()) for block in self.stacks[path]]
            ran[path] = self.stacks[path][0 if reached else (*trained, True).index(True) :]
            torch.set_grad_enabled(False)

        with ExitStack() as hooks, torch.no_grad():
            hooks.callback(self.model.register_forward_pre_hook(called, with_kwargs=True).remove)
            for path, blocks in self.stacks.items():
                handle = blocks[0].register_forward_pre_hook(partial(began, path=path), with_kwargs=True)
                hooks.callback(handle.remove)
            value = forward()
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise ValueError(f"loss(model, batch) gives a value of {what}: make it give one number, such as a mean")
        stacks = {path: ran[path] for path in self.stacks if ran.get(path)}
        if len(calls) != 1 or not stacks:
            raise ValueError(
                f"loss(model, batch) calls the model {len(calls)} times, and gradients reach {len(stacks)} stacks: let "
                "it call model(...) itself, once, since a plan is of one pass, and train some block"
            )
        return calls[0], stacks


class _Batch:
    """A batch that was planned: where the model gets its tensors, from which one of other shapes is made, and the rest
    on the CPU."""

    def __init__(self, batch: Any, tensors: Tensors) -> None:
        leaves, self.form = tree_flatten(dict(batch) if isinstance(batch, Mapping) else batch)
        places = {id(each): place for place, each in tensors.items()}
        self.places = [places.get(id(leaf)) for leaf in leaves]
        others = [leaf for leaf, place in zip(leaves, self.places, strict=True) if place is None]
        self.others = [(e.to("cpu", copy=True), e.device) if isinstance(e, Tensor) else (e, None) for e in others]
        self.whole = all(isinstance(leaf, int | float | str | None) for leaf in others)
        self.shapes = _shapes(tensors)

    def of(self, tensors: Tensors) -> Any:
        """The batch whose tensors the model gets; None where it has others, whose shapes nobody knows."""
        if {*self.places} - {None, *tensors} or not (self.whole or _shapes(tensors) == self.shapes):
            return None
        others = iter([leaf if device is None else leaf.to(device) for leaf, device in self.others])
        return tree_unflatten([next(others) if p is None else tensors[p] for p in self.places], self.form)


def _tensors(value: Any) -> Tensors:
    leaves, _ = tree_flatten_with_path(value)  # a number has no shape
    return {keystr(path): leaf for path, leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}


def _shapes(tensors: Tensors) -> Shapes:
    return frozenset((place, each.shape, each.dtype) for place, each in tensors.items())


def _within(key: tuple[Shapes, bool], known: tuple[Shapes, bool]) -> bool:
    """Whether these tensors are as those, and none is larger."""
    ours, theirs = ({(place, dtype, len(shape)): shape for place, shape, dtype in each} for each, _ in (key, known))
    smaller = ours.keys() == theirs.keys() and all(all(map(int.__le__, ours[each], theirs[each])) for each in ours)
    return smaller and key[1] <= known[1]
