"""Runs blocks again for the backward pass, on autograd's own graph: saved-tensor hooks whose values come late.

A tree of runs (:mod:`suite.chain.tree`) says which calls of blocks keep their graph. A block's call opens the hooks of
the innermost run around it, for this call alone; what the model does between two calls is outside::

    model's loop      call 0    call 1    call 2    call 3        tree [Span(0, 3, (Span(0, 2, (0, 1)), 2)), 3]
    hooks on top      inner     inner     outer     none          inner's input is a value of outer's, outer's is kept

The graph is the plain one, node for node: side outputs, hooks, shared weights, ``autograd.grad``, a second backward
pass, DDP are autograd's as ever. Packing leaves an empty holder. The first holder that is asked for runs the run's
calls again, and all its holders get their values; the rerun ends with the last of them.

What a call gets is followed by identity. A tensor that an earlier call of the same run made is made again; all others
are kept: a model that changes the hidden states between two blocks costs memory, never gradients. A call that runs
again finds the random state, the autocast mode and the running statistics of its first time, and leaves its modules'
attributes as they were. A cache of keys and values is after a call of a run as it was before it: it would fill twice,
and hold what the run lets go.

Sources: ``torch.utils.checkpoint`` without reentry, whose frames are of one function; nesting is Siskind &
Pearlmutter's (2018) and rotor's (Beaumont et al. 2019).
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from suite.chain.caches import caches_kept, containers, is_cache, is_whole, items_of
from suite.chain.gathering import Gathering, owners_of
from suite.chain.moving import CallSlots, Moving, MovingPass
from suite.chain.slots import Keep
from suite.chain.tree import Item, Span, again, starting
from suite.device.random_state import RandomState, unchanged_randomness
from suite.model.attributes import Attributes
from suite.model.calls import lacks_values
from suite.model.forwards import StandIn
from suite.model.segments import Replays

Kind = Literal["run", "save"]


class RerunError(RuntimeError):
    """Is raised where a block that ran again did other things than at first; the message says what."""


class CallWatch(Protocol):
    """Sees each call of a block: for clocks, meters and counts.

    Attributes:
        early: whether a rerun ends with the last value that is asked for, or with its last call.
    """

    early: bool

    def around(self, kind: Kind, index: int, rerun: bool) -> AbstractContextManager[Any]:
        """Is active while call ``index`` runs without ("run") or with ("save") a graph whose values are kept."""

    def began(self, index: int, random: RandomState) -> None:
        """Hears that a call that may run again has begun, in this state of random numbers."""

    def called(self, index: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], rerun: bool) -> None:
        """Hears of the tensors that a call got and gave."""

    def cached(self, index: int, items: Sequence[Any]) -> None:
        """Hears what a key-value cache holds of a call that ran again."""

    def filled(self, span: Span, values: Sequence[Tensor]) -> None:
        """Hears that a rerun has ended, with all the values that were asked for."""


class Unwatched:
    """Sees nothing: for those who see a part."""

    early = True  # whether a rerun ends with the last value that is asked for

    def around(self, kind: Kind, index: int, rerun: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def began(self, index: int, random: RandomState) -> None: ...

    def called(self, index: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], rerun: bool) -> None: ...

    def cached(self, index: int, items: Sequence[Any]) -> None: ...

    def filled(self, span: Span, values: Sequence[Tensor]) -> None: ...


class Made(NamedTuple):
    """Describes a tensor that a call of the pass made: its leaf number ``leaf``."""

    call: int
    leaf: int


# values ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """Holds a tensor that is not made again: ``get`` gives its value, of which no gradient flows on."""

    get: Callable[[], Tensor]
    flows: bool

    def __call__(self) -> Tensor:
        value = self.get().detach()
        return value.requires_grad_() if self.flows else value


def _kept(tensor: Tensor) -> _Kept:
    with torch.enable_grad():
        node = Keep.apply(tensor.detach(), torch.empty(0, requires_grad=True)).grad_fn
    return _Kept(lambda: node.saved_tensors[0], tensor.requires_grad)


def _stays(tensor: Tensor) -> bool:
    """Tells whether it is a weight, which is there anyway."""
    return tensor.is_leaf and isinstance(tensor, nn.Parameter)


def _place(tensor: Tensor) -> Any:
    """Returns one key for all views of a whole value: FSDP2 and hooks on a module's gradients hand views on."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided:
        return id(tensor)
    storage = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
    return *storage, tensor.requires_grad, tensor.is_conj(), tensor.is_neg()


class _Holder:
    """Keeps a saved value's place, which autograd's graph keeps alive."""

    __slots__ = ("__weakref__", "form", "value", "version")

    def __init__(self, form: Any) -> None:
        self.form, self.version = form, 0
        self.value: Tensor | None = None


def _form(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


class _Frame:
    """Describes a run in one pass: what its calls get from outside of it, and a holder for each value that its graph
    saved.

    ``one``: how a rerun of it begins."""

    def __init__(self, one: _Pass, span: Span, around: _Frame | _Refill | None) -> None:
        records = {} if around is None else around.records  # the outermost's own: what they keep ends with it
        self.one = _Pass(one.reruns, span.items, None, records, one.uses, one.moved)
        self.span, self.around = span, around
        self.reruns = one.reruns
        self.inputs: dict[Made, _Kept] = {}
        self.holders: list[weakref.ref[_Holder]] = []

    @property
    def records(self) -> dict[int, _Record]:
        return self.one.records

    def keep(self, made: Made, tensor: Tensor) -> None:
        """Keeps a value that a call before the run made, and one of the run reads: kept, or a value of the run
        around."""
        if made in self.inputs:
            return
        if (around := self.around) is None:
            first = made.call + 1 == self.span.start
            self.inputs[made] = self.one.kept(self.span.start, tensor) if first else _kept(tensor)
        else:
            packed = around.pack(tensor.detach())
            self.inputs[made] = _Kept(lambda: around.unpack(packed), tensor.requires_grad)

    def pack(self, tensor: Tensor) -> Any:
        if _stays(tensor):
            return tensor
        holder = _Holder(_form(tensor))
        self.holders.append(weakref.ref(holder))
        return holder

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if packed.value is None:
            _Refill(self).go()
        value = packed.value
        if torch._C._autograd._get_current_graph_task_keep_graph():  # for another backward pass the calls run again
            packed.value = None
        if value is None:
            raise RerunError(f"{self.reruns.names(self.span)} saved fewer tensors when it ran again{SAME}")
        if value._version != packed.version:
            raise RerunError(f"{self.reruns.names(self.span)} writes in place to a value that a rerun reads{SAME}")
        return value


SAME = ": what runs again must compute the same; leave these blocks out, or train without recomputation"


class _Stop(Exception):
    """Is raised where a rerun has all that is asked for."""


class _Refill:
    """Runs a frame's calls again, which gives its holders their values."""

    def __init__(self, frame: _Frame) -> None:
        self.frame, self.next = frame, 0
        self.last = max(n for n, ref in enumerate(frame.holders) if (h := ref()) is not None and h.value is None)

    @property
    def records(self) -> dict[int, _Record]:
        return self.frame.records

    def pack(self, tensor: Tensor) -> Any:
        if _stays(tensor):
            return tensor
        holder, value = self.frame.holders[self.next](), tensor.detach()
        if holder is not None and holder.value is None:
            if holder.form != _form(tensor):
                raise RerunError(
                    f"{self.frame.reruns.names(self.frame.span)} saved {list(tensor.shape)} of {tensor.dtype} when it "
                    f"ran again, and {list(holder.form[0])} of {holder.form[1]} at first{SAME}"
                )
            holder.value, holder.version = value, value._version
        self.next += 1
        if self.next > self.last and self.frame.reruns.watch.early:
            raise _Stop
        return value

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        return packed

    def go(self) -> None:
        """Runs the frame's calls again, as far as the last value."""
        frame = self.frame
        if frame.one.moved is not None:
            frame.one.moved.come_back(frame.span.end - 1)
        records = frame.records
        indices = [index for index in records if frame.span.start <= index < frame.span.end]
        one = replace(frame.one, base=self, open=[], values={}, last=-1)
        device = records[indices[0]].device
        with (
            Gathering(frame.reruns.owners) as gather,
            torch.enable_grad(),
            unchanged_randomness(device),
            suppress(_Stop),
        ):
            for index in indices:
                gather.weights_of(frame.reruns.order[index])
                one.call_again(index)
        one.values.clear()
        filled = [holder.value for ref in frame.holders if (holder := ref()) is not None and holder.value is not None]
        frame.reruns.watch.filled(frame.span, filled)


# calls ----------------------------------------------------------------------------------------------------------------


Modes = list[tuple[str, torch.dtype, bool]]
"""Autocast by kind of device: its type, and whether it is on."""


def _modes(given: Sequence[Tensor]) -> Modes:
    kinds = {"cpu", *(each.device.type for each in given[:1])}
    return [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in sorted(kinds)]


def _cast_anew(stack: ExitStack, modes: Modes) -> None:
    """Sets autocast to these modes, in which each call casts for itself."""
    for kind, dtype, enabled in modes:
        if enabled or torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))


@dataclass
class _Record:
    """Records a call's first time: ``leaves`` of its arguments (a tensor that a call made as Made, one to keep as
    _Kept), the state and the modes that it found."""

    leaves: list[Any]
    form: Any
    device: torch.device
    random: RandomState
    autocast: Modes
    statistics: Replays
    attributes: Attributes | None = None  # that the call changed, as they were before

    @contextmanager
    def restored(self, block: nn.Module) -> Iterator[None]:
        """Has the random state, the modes and attributes of the first time; the modules are afterwards as they are
        now."""
        self.random.restore()
        now = Attributes.of(block)
        with ExitStack() as stack:
            _cast_anew(stack, self.autocast)
            if self.attributes is not None:
                self.attributes.put(whole=False)
            stack.callback(now.put, whole=True)
            yield


@dataclass
class _Pass:
    """Describes the model's pass through its blocks (``base`` is None), or a rerun of some of its calls."""

    reruns: Reruns
    items: Sequence[Item]
    base: _Refill | None = None
    records: dict[int, _Record] = field(default_factory=dict)
    uses: dict[Made, int] = field(default_factory=dict)  # the last call that reads it
    moved: MovingPass | None = None
    open: list[_Frame] = field(default_factory=list)
    made: dict[Any, tuple[weakref.ref[Tensor], Made, int]] = field(default_factory=dict)  # by place, with its version
    given: dict[int, tuple[weakref.ref[Tensor], _Kept]] = field(default_factory=dict)
    caches: dict[int, Any] = field(default_factory=dict)
    values: dict[Any, Tensor] = field(default_factory=dict)  # of a rerun
    last: int = -1

    def frames(self, index: int) -> tuple[_Frame | _Refill | None, bool]:
        """Closes the runs that ended, opens those that begin; the innermost, and whether one of this pass is open."""
        while self.open and self.open[-1].span.end <= index:
            self.open.pop()
        for span in list(starting(self.open[-1].span.items if self.open else self.items, index, self.last)):
            self.open.append(_Frame(self, span, self.open[-1] if self.open else self.base))
        return (self.open[-1] if self.open else self.base), bool(self.open)

    def call(self, index: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Does a call's first time."""
        around, inside = self.frames(index)
        leaves, form = tree_flatten((args, kwargs))
        given = [each for each in leaves if isinstance(each, Tensor)]
        block, slots = self.reruns.order[index], None
        with ExitStack() as stack:
            stack.enter_context(self.reruns.watch.around("run" if inside else "save", index, False))
            if (inside or self.reruns.alike) and id(block) not in self.reruns.shared:
                _cast_anew(stack, _modes(given))  # a cached cast of a weight would outlive the call
            if inside:
                assert around is not None
                record = self.open[0].records[index] = self._record(index, leaves, form)
                self.reruns.watch.began(index, record.random)
                stack.enter_context(caches_kept(leaves))
                stack.enter_context(record.statistics.run())
                stack.enter_context(saved_tensors_hooks(around.pack, around.unpack))
                attributes = Attributes.of(block)
            elif self.moved is not None and index in self.moved.moving.watched:
                own = given[:1] if index == 0 else [each for each in given if self._of_call_before(index, each)]
                slots = CallSlots(self.moved, index, given, own, [*block.parameters(), *block.buffers()])
                stack.enter_context(saved_tensors_hooks(slots.pack, slots.unpack))
            output = function(*args, **kwargs)
        if inside:
            record.attributes = attributes.changed()
        tensors = [(leaf, each) for leaf, each in enumerate(tree_flatten(output)[0]) if isinstance(each, Tensor)]
        for leaf, each in tensors:
            self.made[_place(each)] = weakref.ref(each), Made(index, leaf), each._version
        self.last = index
        if self.moved is not None:
            self.moved.ended(index, [each for _, each in tensors], slots)
        self.reruns.watch.called(index, given, [each for _, each in tensors], False)
        return output

    def kept(self, index: int, tensor: Tensor) -> _Kept:
        """Keeps the input with which a run begins: on the device or, where it moves, where it is."""
        slot = self.moved.kept(index, tensor) if self.moved is not None else None
        return _kept(tensor) if slot is None else _Kept(slot.get, tensor.requires_grad)

    def _of_call_before(self, index: int, tensor: Tensor) -> bool:
        _, made, _ = self.made.get(_place(tensor), (None, None, 0))
        return made is not None and made.call == index - 1

    def call_again(self, index: int) -> None:
        """Repeats a call in a rerun: from values that the rerun made, or that are kept."""
        around, inside = self.frames(index)
        record, function = self.records[index], self.reruns.functions[id(self.reruns.order[index])]
        assert around is not None
        with self.reruns.watch.around("run" if inside else "save", index, True):
            leaves = [self._value(leaf) for leaf in record.leaves]
            for made, tensor in zip(record.leaves, leaves, strict=True):
                if isinstance(made, Made):
                    self._crossing(made, tensor)
            for key in [key for key in self.values if isinstance(key, Made) and self.uses[key] <= index]:
                del self.values[key]
            args, kwargs = tree_unflatten(leaves, record.form)
            del leaves
            with (
                caches_kept(record.leaves) as caches,
                record.restored(self.reruns.order[index]),
                record.statistics.run(),
                saved_tensors_hooks(around.pack, around.unpack),
            ):
                output = function(*args, **kwargs)
                self.reruns.watch.cached(index, [each for one, _ in caches for each in items_of(one)])
        tensors = [(leaf, each) for leaf, each in enumerate(tree_flatten(output)[0]) if isinstance(each, Tensor)]
        self.reruns.watch.called(index, [], [each for _, each in tensors], True)
        del args, kwargs, output
        for leaf, each in tensors:
            if self.uses.get(made := Made(index, leaf), -1) > index:
                self.values[made] = each.detach().requires_grad_(each.requires_grad)
        self.last = index

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Made):
            if leaf not in self.values:
                assert self.base is not None
                self.values[leaf] = self.base.frame.inputs[leaf]()
            return self.values[leaf]
        if isinstance(leaf, _Kept):
            if leaf not in self.values:
                self.values[leaf] = leaf()
            return self.values[leaf]
        return leaf

    def _crossing(self, made: Made, tensor: Tensor) -> None:
        for frame in self.open:
            if made.call < frame.span.start:
                frame.keep(made, tensor)

    def _record(self, index: int, leaves: Sequence[Any], form: Any) -> _Record:
        given = [each for each in leaves if isinstance(each, Tensor)]
        device = given[0].device if given else torch.device("cpu")
        statistics = Replays(list(self.reruns.order[index].modules()))
        traced = [
            self._traced(index, leaf, leaf is given[0]) if isinstance(leaf, Tensor) else self._own(leaf)
            for leaf in leaves
        ]
        random = self.reruns.random_now(device, not any(map(lacks_values, given)))
        return _Record(traced, form, device, random, _modes(given), statistics)

    def _own(self, value: Any) -> Any:
        """Returns a cache of this pass's reruns alone: the model's may hold what blocks that keep their graph put into
        it."""
        if not is_cache(value):
            return value
        if id(value) not in self.caches:
            shared = {
                id(each): each for container, _ in containers(value) for each in items_of(container) if is_whole(each)
            }
            self.caches[id(value)] = copy.deepcopy(value, shared)
        return self.caches[id(value)]

    def _traced(self, index: int, tensor: Tensor, first: bool) -> Any:
        """Returns what a rerun takes for a tensor among a call's arguments; the ``first`` call's first one begins the
        chain."""
        if _stays(tensor):
            return tensor
        reference, made, version = self.made.get(_place(tensor), (lambda: None, None, 0))
        if (known_as := reference()) is not None and known_as._version == tensor._version == version:
            assert made is not None
            self.uses[made] = index
            self._crossing(made, tensor)
            return made
        known = self.given.get(id(tensor))
        if known is None or known[0]() is not tensor:
            value = self.kept(0, tensor) if index == 0 and first else _kept(tensor)
            known = self.given[id(tensor)] = weakref.ref(tensor), value
        return known[1]


# installing -----------------------------------------------------------------------------------------------------------


class Reruns:
    """Keeps a tree of runs on a model's blocks, from :meth:`install` to :meth:`remove`.

    Args:
        order: the module of each call, in the order of a pass; one may come several times.
        items: the tree.
        watch: sees every call.
        model: which the blocks are of, where FSDP2 shards modules around them.
        moving: what leaves for a second tier and comes back.
        alike: whether calls that keep their graph cast weights as those that run again do, each for itself; else as
            the model's pass does.
    """

    def __init__(
        self,
        order: Sequence[nn.Module],
        items: Sequence[Item],
        watch: CallWatch | None = None,
        model: nn.Module | None = None,
        moving: Moving | None = None,
        alike: bool = False,
    ) -> None:
        self.moving, self.alike = moving, alike
        self.order, self.items, self.watch = list(order), tuple(items), watch or Unwatched()
        self.places: dict[int, list[int]] = {}
        for index, block in enumerate(self.order):
            self.places.setdefault(id(block), []).append(index)
        weights = Counter(id(weight) for block in self.order for weight in block.parameters())
        self.owners = {
            block: owner for block, owner in owners_of(model or nn.ModuleList(order)) if block in self.places
        }
        self.shared = {id(block) for block in self.order if any(weights[id(w)] > 1 for w in block.parameters())}
        self.needed = bool(again(items)) or watch is not None or moving is not None or alike
        self.stand_ins: dict[int, StandIn] = {}
        self.functions: dict[int, Callable[..., Any]] = {}  # of each block, without this
        self.current: _Pass | None = None
        self.random: RandomState | None = None

    def install(self) -> None:
        """Lets passes with gradients run so from now on. Where nothing runs again it changes nothing."""
        for block in self.order if self.needed else ():
            if id(block) not in self.stand_ins:
                self.stand_ins[id(block)] = StandIn(block, partial(self._of, block))

    def remove(self) -> None:
        """Leaves the blocks as they were; passes that have not gone back yet still do."""
        self.end()
        while self.stand_ins:
            self.stand_ins.popitem()[1].remove()

    @contextmanager
    def installed(self) -> Iterator[Reruns]:
        self.install()
        try:
            yield self
        finally:
            self.remove()

    def _of(self, block: nn.Module, before: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for a block's forward: the last set of reruns alone, of several."""
        function = getattr(getattr(before, "stand_for", None), "without_reruns", before)
        self.functions[id(block)] = function

        @torch._dynamo.disable
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                return self.called(block, function, args, kwargs)
            return before(*args, **kwargs)

        forward.without_reruns = function
        return forward

    def end(self) -> None:
        """Ends the pass: what stays belongs to the graph."""
        if self.current is not None:
            self.current.open = []
        self.current = self.random = None

    def called(
        self, block: nn.Module, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        index = self._due(block)
        if self.current is None:
            moved = MovingPass(self.moving) if self.moving is not None else None
            self.current = _Pass(self, self.items, moved=moved)
        try:
            output = self.current.call(index, function, args, kwargs)
        except BaseException:
            self.end()
            raise
        if index + 1 == len(self.order):
            self.end()
        return output

    def _due(self, block: nn.Module) -> int:
        """Returns the number of this call: the block's next in the pass, or, where it has none, its first in a new
        one."""
        places = self.places[id(block)]
        last = self.current.last if self.current is not None else -1
        due = next((index for index in places if index > last), None)
        if due is None:
            self.end()
            due = places[0]
        return due

    def random_now(self, device: torch.device, compare: bool) -> RandomState:
        """Returns the state of random numbers, the last one where nothing was drawn since; without values nothing is
        drawn."""
        now, last = RandomState.now(device), self.random
        if last is None or last.device != device or (compare and not torch.equal(last.cpu, now.cpu)):
            last = self.random = now
        if not compare or now.cuda is None or (last.cuda is not None and torch.equal(last.cuda, now.cuda)):
            return last
        self.random = now
        return now

    def names(self, span: Span) -> str:
        """Names a run in words."""
        blocks = {type(self.order[index]).__name__ for index in range(span.start, span.end)}
        where = f"block {span.start}" if span.end - span.start == 1 else f"blocks {span.start} to {span.end - 1}"
        return f"{where} ({', '.join(sorted(blocks))})"
