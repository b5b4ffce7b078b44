"""Fits a model of yours within a budget of memory: blocks run a second time where the budget asks for it, and nowhere
else.

    >>> fitted = leantrain.fit(model, batch, loss, memory="8GB")  # loss(model, batch) gives a scalar
    >>> print(fitted)                                             # what it will cost, before it is run
    >>> with fitted.step():
    ...     loss(model, batch).backward()

Or, where the loop is a Trainer's, Accelerate's or DDP's, ``fitted.install()`` before it and ``fitted.remove()`` after
it. The model's code stays as it is; so do loss and gradients, to the bit. A pass, watched block by block, says what
each block costs; a schedule of rotor's (Herrmann, Beaumont et al. 2019) then takes the least time within the budget.

What runs again does so on autograd's own graph (:mod:`suite.chain.rerun`): whatever leaves a block by another way than
its output (attentions, a router's logits, an attribute, a hook, a closure) has its gradient, hooks run once,
``autograd.grad``, a second backward pass and ``create_graph`` work, DDP and FSDP2 reduce as ever. Before ``fit``
returns it takes one plain and one fitted pass and compares loss, gradients (also of what is not in the model) and how
often they arrive; what differs is refused in a sentence.

The budget is that of a forward and a backward pass: weights, buffers, batch, gradients, activations, what operators
make for a moment, random states, and the optimizer's state if you name it. Bytes are those of tensors: an allocator's
rounding and kernels' workspaces come on top, and so does what an optimizer makes in its own step. Blocks that run again
leave a key-value cache (``use_cache``) as they found it: what the model returns of it is empty there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from leantrain.fitted_plan import (
    FittedPlan,
    accumulating,
    check,
    check_static_graph,
    chosen,
    front_of,
    larger,
    link_to_host,
    said,
    state_of,
    weight_bytes,
)
from leantrain.trial_passes import Accumulated, Trial, difference, groups_of, on_all_ranks, trial_passes, tried
from suite.chain.chain import Chain
from suite.chain.moving import MoveError, Moving
from suite.chain.observe import clocked, observed
from suite.chain.plan import Plan, unplanned
from suite.chain.rerun import RerunError, Reruns
from suite.chain.tiers import HostTier
from suite.meters.storage import tensors_within, unique_bytes
from suite.meters.tensors import TensorBytes
from suite.model.repeated import calls_of_blocks
from suite.record.amounts import bytes_of

Loss = Callable[[nn.Module, Any], Tensor]
Tensors = dict[str, Tensor]  # that the model gets, by their places in its arguments
Shapes = frozenset[tuple[str, torch.Size, torch.dtype]]

_planning: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models whose passes are on trial


def fit(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    memory: str,
    *,
    optimizer: Any = None,
    accumulate: bool = False,
    seconds: Literal["counted", "clocked"] = "counted",
    verify: bool = True,
    offload: str | None = None,
) -> Fitted:
    """Finds the fastest recomputation of the model's blocks whose pass stays within ``memory``; nothing is installed
    yet.

    Args:
        model: whose repeated modules may run again, of whatever kind; under DDP or FSDP2, too.
        batch: of the size and on the device that you train with. Smaller ones are served by its plan, larger ones by
            one that is scaled from it; :meth:`Fitted.plan_for` plans another exactly.
        loss: ``loss(model, batch)`` calls the model once and gives a scalar, autocast inside or around. It is called a
            few times, never inside a step of yours, and leaves weights, gradients, buffers, modes and random numbers as
            they were.
        memory: with its unit, "8GB" or "8GiB".
        optimizer: its state counts in the budget: as it is or, before its first step, as AdamW's 8 bytes a trainable
            parameter.
        accumulate: plan for passes that find earlier ones' gradients. Without it such a pass is planned as it comes.
        seconds: of FLOPs, which give the same plan everywhere, or of the clock, whose passes keep all activations.
        offload: the link to the host's memory, "25GB/s" or "measured" (of a GPU): beside blocks that run again, tensors
            that a block saves may leave for it and come back, one by one, where that is sooner. It weighs a link
            against the clock, so that ``seconds`` must be "clocked"; weights that are sharded stay out of it.
        verify: compare a fitted pass with a plain one, or, where that does not fit on the device, with torch's own
            checkpoint of every block.

    Raises:
        ValueError: an amount without a unit, a budget that cannot be met (with the least that can, and what would
            help), a loss that is no scalar, a model without repeated modules, blocks that do other things when they run
            again. The model is then as it was.
    """
    fitted = Fitted(model, loss, int(bytes_of(str(memory))), optimizer, accumulate, seconds, verify, offload)
    fitted.plan = fitted.plan_for(batch)
    return fitted


@dataclass(frozen=True)
class _Profile:
    """Holds what a pass of one batch costs, whose plans are ``front``; ``sizes``: elements by place."""

    chain: Chain
    front: list[Plan]
    sizes: Mapping[str, int]
    batch_bytes: int
    quadratic: bool


class Fitted:
    """Holds a model and its plans; ``plan`` is of the batch that it was fitted with, ``plans`` has all, by the shapes
    of what the model gets and by whether a pass finds gradients."""

    plan: FittedPlan

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        memory_bytes: int,
        optimizer: Any,
        accumulate: bool,
        seconds: str,
        verify: bool,
        offload: str | None,
    ) -> None:
        self.model: nn.Module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        check_static_graph(self.model)
        check(self.model, memory_bytes, seconds)
        self.loss, self.memory_bytes = loss, memory_bytes
        self.link, self.tier = None, HostTier()
        if offload is not None:
            if seconds != "clocked":
                raise ValueError("offload weighs a link against the clock: pass seconds='clocked' with it")
            if _shards(self.model):
                raise ValueError("offload plans no model whose weights are sharded: leave it out, or fit without FSDP2")
            device = next(self.model.parameters()).device
            self.link = link_to_host(offload, device)
            self.tier = HostTier(link_bytes_per_s=self.link.out_bytes_per_s if device.type == "cpu" else None)
        self.optimizer, self.accumulate, self.seconds, self.verify = optimizer, accumulate, seconds, verify
        self.order: list[nn.Module] = []
        self.plans: dict[tuple[Shapes, bool], FittedPlan] = {}
        self._profiles: dict[Shapes, _Profile] = {}
        self._orders: dict[Shapes, tuple[nn.Module, ...]] = {}
        self._handles: list[Any] = []
        self._running = ExitStack()

    def __str__(self) -> str:
        return f"{type(self.model).__name__}: {self.plan}"

    # installing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Passes inside run as planned."""
        installed = bool(self._handles)
        self.install()
        try:
            yield
        finally:
            if not installed:
                self.remove()

    def install(self) -> None:
        """Makes all passes with gradients run as planned from now on, until :meth:`remove`."""
        if not self._handles:
            self._handles = [
                self.model.register_forward_pre_hook(self._begin, with_kwargs=True),
                self.model.register_forward_hook(self._end, always_call=True),
            ]

    def remove(self) -> None:
        """Puts the model back as it was."""
        while self._handles:
            self._handles.pop().remove()
        self._running.close()

    def _begin(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self._running.close()  # of a pass that did not end
        if self.model in _planning or not torch.is_grad_enabled():
            return
        held = self.accumulate or any(each.grad is not None for each in self.model.parameters())
        plan = self._plan_of(_tensors((args, kwargs)), held)
        if plan.changes:
            self._running.enter_context(self._reruns(plan).installed())

    def _reruns(self, plan: FittedPlan) -> Reruns:
        moving = Moving(plan.schedule, self.tier) if plan.moved_bytes else None
        return Reruns(plan.order, plan.runs, model=self.model, moving=moving)

    def _end(self, *_: Any) -> None:
        if self.model not in _planning:
            self._running.close()

    # plans ----------------------------------------------------------------------------------------------------------

    def _plan_of(self, tensors: Tensors, held: bool) -> FittedPlan:
        """Returns the plan for these tensors; of new ones, that of larger ones, or one that is scaled up."""
        key = _shapes(tensors), held
        if _shards(self.model):  # every rank must gather the same blocks in the same order
            return self.plan
        if key not in self.plans:
            serving = [plan for known, plan in self.plans.items() if _within(key, known)]
            served = min(serving, key=lambda each: (each.extra_time, each.peak_bytes), default=None)
            self.plans[key] = served or self._scaled(tensors, held)
        return self.plans[key]

    def _scaled(self, tensors: Tensors, held: bool) -> FittedPlan:
        sizes = _sizes(tensors)

        def times(known: _Profile) -> float:
            return max((size / known.sizes.get(place, 1) for place, size in sizes.items()), default=1.0)

        shapes = min(self._profiles, key=lambda known: abs(times(self._profiles[known]) - 1))
        nearest, order = self._profiles[shapes], self._orders[shapes]
        ratio = times(nearest)
        chain = nearest.chain if ratio <= 1 else larger(nearest.chain, ratio, nearest.quadratic)
        chain = accumulating(chain) if held else chain
        resident = self._resident(int(nearest.batch_bytes * max(1.0, ratio)), held)
        there = sum(resident.values())
        front = front_of(chain)
        plan = next((each for each in front if there + each.peak_bytes <= self.memory_bytes), front[-1])
        return replace(said(plan, chain, self.memory_bytes, there), scaled=True, order=order)

    def plan_for(self, batch: Any) -> FittedPlan:
        """Plans passes of this batch exactly, as ``fit`` did; call it between steps. Raises as :func:`fit`."""
        if self.model in _planning:
            raise ValueError("the loss calls fit, or a plan, while one is made of it: plan between steps")
        _planning.add(self.model)
        try:
            return self._planned(batch)
        finally:
            _planning.discard(self.model)

    def _planned(self, batch: Any) -> FittedPlan:
        device = next(self.model.parameters()).device
        around = device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)

        def forward() -> Tensor:  # autocast around the loss ends before the way back, and its casts with it
            with torch.autocast(*around):
                value = self.loss(self.model, batch)
            torch.clear_autocast_cache()
            return value

        with torch.autocast(device.type, enabled=False):
            tensors = self._looked(forward)
            shapes = _shapes(tensors)
            batch_bytes = unique_bytes(e for e in tensors_within(batch) if e.device == device)
            with self._explained(forward):
                chain, quadratic = self._chain(forward, tensors)
            everyone = on_all_ranks(_Profile(chain, [], _sizes(tensors), batch_bytes, quadratic), self.model)
            neediest = max(everyone, key=lambda each: each.batch_bytes + unplanned([each.chain]).peak_bytes)
            budget_bytes = self.memory_bytes - sum(self._resident(neediest.batch_bytes, self.accumulate).values())
            front = front_of(neediest.chain, self.link, budget_bytes)
            profile = self._profiles[shapes] = replace(neediest, front=front)
            self._orders[shapes] = tuple(self.order)
            plan = self._verified(profile, forward, batch)
        self.plans[shapes, self.accumulate] = plan
        return plan

    def _looked(self, forward: Callable[[], Tensor]) -> Tensors:
        """Returns the tensors that the model gets; finds the calls of its blocks in a pass without gradients."""
        calls: list[Tensors] = []

        def called(_: nn.Module, args: Any, kwargs: Any) -> None:
            calls.append(_tensors((args, kwargs)))

        with trial_passes(self.model, "none"), torch.no_grad():
            handle = self.model.register_forward_pre_hook(called, with_kwargs=True)
            try:
                self.model.eval()  # every block runs, also where training leaves some out
                value: list[Any] = []
                self.order = calls_of_blocks(self.model, lambda: value.append(forward()))
            finally:
                handle.remove()
                _reshard(self.model)
        if not isinstance(value[0], Tensor) or value[0].numel() != 1:
            what = (
                f"shape {list(value[0].shape)}" if isinstance(value[0], Tensor) else f"type {type(value[0]).__name__}"
            )
            raise ValueError(f"loss(model, batch) gives a value of {what}: make it give one number, such as a mean")
        if len(calls) != 1:
            raise ValueError(
                f"loss(model, batch) calls the model {len(calls)} times: let it call model(...) itself, once, since a "
                "plan is of one pass"
            )
        return calls[0]

    def _chain(self, forward: Callable[[], Tensor], tensors: Tensors) -> tuple[Chain, bool]:
        """Measures what a pass costs; calls that no gradient reaches are left out of the order."""
        accumulated: Accumulated = "all" if self.accumulate else "none"
        with trial_passes(self.model, accumulated) as protect:

            def loss() -> Tensor:
                if not self.accumulate:
                    self.model.zero_grad()
                value = forward()
                if not value.requires_grad:
                    raise ValueError(
                        "loss(model, batch) has no gradient: do not detach it, and train some of the model"
                    )
                protect(value)
                return value

            lengths = {size for each in tensors.values() for size in each.shape[1:]}
            seen = observed(self.order, loss, lengths, model=self.model)
            self.order = seen.order
            chain = clocked(seen.chain, self.order, loss, model=self.model) if self.seconds == "clocked" else seen.chain
        return (accumulating(chain) if self.accumulate else chain), seen.quadratic

    def _resident(self, batch_bytes: int, held: bool) -> dict[str, int]:
        trained = [each for each in self.model.parameters() if each.requires_grad]
        return {
            "weights": weight_bytes(self.model),
            "optimizer state": state_of(self.optimizer, self.model),
            "batch": batch_bytes,
            "gradients": unique_bytes(trained) if held else 0,
        }

    # trials ---------------------------------------------------------------------------------------------------------

    def _verified(self, profile: _Profile, forward: Callable[[], Tensor], batch: Any) -> FittedPlan:
        """Finds the fastest plan whose pass, tried, stays within the budget and does what a plain one does."""
        residents = on_all_ranks(self._resident(profile.batch_bytes, self.accumulate), self.model)
        resident = max(residents, key=lambda each: sum(each.values()))
        front, least_bytes = list(profile.front), 0
        while True:  # each plan has a lower peak than the one before, and the last refusal is chosen's
            plan = replace(
                chosen(self.model, profile.chain, front, self.memory_bytes, resident, least_bytes),
                order=tuple(self.order),
            )
            if not self.verify:
                return plan
            fitted, peak_bytes, reserved_bytes = self._tried(plan, forward, batch, resident)
            wrong = difference(fitted, lambda: self._reference(forward), self.model) if plan.changes else ""
            if wrong:
                raise ValueError(
                    f"{type(self.model).__name__} cannot be fitted: when its blocks run again, {wrong}; leave out what "
                    "draws random numbers of its own or changes its inputs or state in a block, or train it unfitted"
                )
            if _shards(self.model):  # its meter takes what FSDP2 scatters for what was there before
                return replace(plan, reserved_bytes=reserved_bytes)
            if peak_bytes <= self.memory_bytes:
                return replace(plan, peak_bytes=max(plan.peak_bytes, peak_bytes), reserved_bytes=reserved_bytes)
            front = [each for each in front if each.peak_bytes < plan.peak_bytes - plan.resident_bytes]
            least_bytes = peak_bytes - plan.resident_bytes

    def _tried(
        self, plan: FittedPlan, forward: Callable[[], Tensor], batch: Any, resident: Mapping[str, int]
    ) -> tuple[Trial, int, int | None]:
        """Tries a fitted pass: what it gives, its peak in bytes, and, on CUDA, what was reserved."""
        device = next(self.model.parameters()).device
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        meter = TensorBytes()

        @contextmanager
        def running() -> Iterator[None]:
            with meter.seed(self.model, None, batch), self._reruns(plan).installed():
                yield

        with self._explained(forward):
            trial = tried(self.model, forward, running())
        peak_bytes = meter.peak_bytes + resident["optimizer state"] + resident["gradients"]
        return trial, peak_bytes, torch.cuda.max_memory_reserved(device) if cuda else None

    @contextmanager
    def _explained(self, forward: Callable[[], Tensor]) -> Iterator[None]:
        """Answers an error of blocks that run again with a sentence, where a plain pass has none."""
        try:
            yield
        except (ValueError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self._reference(forward)
            what = f"ends in {type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
            what = str(error) if isinstance(error, RerunError | MoveError) else f"a pass whose blocks run again {what}"
            raise ValueError(f"{type(self.model).__name__} cannot be fitted: {what}") from error

    def _reference(self, forward: Callable[[], Tensor]) -> Trial:
        """Runs a plain pass or, where the device has no room for it, torch's own checkpoint of every block."""
        try:
            return tried(self.model, forward)
        except torch.OutOfMemoryError:
            with _checkpointed(self.order):
                return tried(self.model, forward)


@contextmanager
def _checkpointed(order: list[nn.Module]) -> Iterator[None]:
    from torch.utils.checkpoint import checkpoint

    with ExitStack() as stack:
        for block in {id(each): each for each in order}.values():
            own, forward = vars(block).get("forward"), block.forward

            def again(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
                return checkpoint(_forward, *args, use_reentrant=False, **kwargs)

            stack.callback(setattr if own is not None else lambda b, n, _: vars(b).pop(n), block, "forward", own)
            block.forward = again
        yield


def _shards(model: nn.Module) -> bool:
    """Tells whether its weights are spread over ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False  # each pass asks
    return bool(groups_of(model)) or any(hasattr(type(each), "unshard") for each in model.modules())


def _reshard(model: nn.Module) -> None:
    """Shards the weights again after a pass that does not go back; FSDP2 leaves the root's weights gathered."""
    if _shards(model):
        from torch.distributed.fsdp import FSDPModule

        for each in model.modules():
            if isinstance(each, FSDPModule):
                each.reshard()


def _tensors(value: Any) -> Tensors:
    leaves, _ = tree_flatten_with_path(value)  # a number has no shape
    return {keystr(path): leaf for path, leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}


def _shapes(tensors: Tensors) -> Shapes:
    return frozenset((place, each.shape, each.dtype) for place, each in tensors.items())


def _sizes(tensors: Tensors) -> dict[str, int]:
    return {place: max(1, each.numel()) for place, each in tensors.items()}


def _within(key: tuple[Shapes, bool], known: tuple[Shapes, bool]) -> bool:
    """Tells whether these tensors are as those, and none is larger."""
    ours, theirs = ({(place, dtype, len(shape)): shape for place, shape, dtype in each} for each, _ in (key, known))
    smaller = ours.keys() == theirs.keys() and all(all(map(int.__le__, ours[each], theirs[each])) for each in ours)
    return smaller and key[1] <= known[1]
