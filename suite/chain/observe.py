"""A chain's costs, seen on autograd's own graph: passes in which each call of a block runs again, watched call by call.

All blocks of a model are one chain, in the order in which it calls them: an encoder and a decoder, two towers, the
stages of a pyramid. What the model does between two calls lives beside the chain, as much as was seen there::

    forward      before   call 0   between   call 1   ...   turn
    backward              back 0 = what comes until        back 1 = again 1, and what comes until call 0's
                          the end                                   output has its gradient

Bytes and FLOPs are exact. A pass whose reruns go to their end says what a save in the middle of a rerun costs, one
whose reruns end early what the last one does. Seconds are FLOPs over a rate, which give the
same schedule everywhere, or those of the clock, medians of passes beside plain ones.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.chain.chain import Chain, Stage, Surroundings
from suite.chain.rerun import Kind, Reruns
from suite.chain.tree import Span
from suite.device.random_state import RandomState
from suite.meters.clock import Clock
from suite.meters.flops import FlopCounter
from suite.meters.live import NamedHigh
from suite.meters.storage import storages, unique_bytes

Loss = Callable[[], Tensor]
Event = tuple[str, int]
"""What happened, and at which call: run, save, again begin, ...ed: end; back: its output has its gradient."""

PASSES = 9  # of the clock


@dataclass(frozen=True)
class Reading:
    """What the meters say at an event: ``high_bytes`` since the event before."""

    live_bytes: int
    high_bytes: int
    flops: int
    maker: str = ""


@dataclass
class Log:
    """The events of a pass in their order, each with what ``read`` said. A watch of :class:`Reruns`."""

    read: Callable[[], Any]
    early: bool = True
    events: list[tuple[Event, Any]] = field(default_factory=list)
    inputs: dict[int, dict[int, int]] = field(default_factory=dict)  # bytes by storage
    outputs: dict[int, list[set[int]]] = field(default_factory=dict)  # storages, tensor by tensor
    remade: dict[int, list[set[int]]] = field(default_factory=dict)  # the same, of a rerun
    graphs: dict[int, dict[int, int]] = field(default_factory=dict)
    caches: dict[int, dict[int, int]] = field(default_factory=dict)  # what only a key-value cache holds of a call
    came_back: set[int] = field(default_factory=set)
    states: dict[int, int] = field(default_factory=dict)  # bytes of the random state that a call found first
    random: list[RandomState] = field(default_factory=list)
    lengths: frozenset[int] = frozenset()
    quadratic: bool = False
    sized: bool = False

    def note(self, name: str, index: int) -> None:
        self.events.append(((name, index), self.read()))

    @contextmanager
    def around(self, kind: Kind, index: int, rerun: bool) -> Iterator[None]:
        self.note("again" if rerun else kind, index)
        yield
        if not rerun:
            self.note(f"{kind}ed", index)

    def called(self, index: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], rerun: bool) -> None:
        if self.sized:
            (self.remade if rerun else self.outputs)[index] = [{s._cdata for s in storages(each)} for each in outputs]
        if rerun:
            return
        if self.sized:
            self.inputs[index] = {s._cdata: s.nbytes() for each in inputs for s in storages(each)}
        for each in outputs:
            if each.requires_grad and not each.is_leaf:
                each.register_hook(partial(self._back, index))

    def began(self, index: int, random: RandomState) -> None:
        if not any(random is each for each in self.random):
            self.random.append(random)
            self.states[index] = unique_bytes([random.cpu])

    def _back(self, index: int, _: Tensor) -> None:
        if index not in self.came_back:
            self.came_back.add(index)
            self.note("back", index)

    def cached(self, index: int, items: Sequence[Any]) -> None:
        if self.sized:
            tensors = [each for each in items if isinstance(each, Tensor)]
            self.caches[index] = {s._cdata: s.nbytes() for each in tensors for s in storages(each)}

    def filled(self, span: Span, values: Sequence[Tensor]) -> None:
        self.note("agained", span.start)
        if self.sized:
            self.quadratic |= any(sum(size in self.lengths for size in each.shape) > 1 for each in values)
            saved = self.graphs[span.start] = {s._cdata: s.nbytes() for each in values for s in storages(each)}
            own = {key: size for key, size in self.caches.get(span.start, {}).items() if key not in saved}
            self.caches[span.start] = own


def each_again(calls: int) -> list[Span]:
    """Every call runs again by itself."""
    return [Span(index, index + 1, (index,)) for index in range(calls)]


@dataclass(frozen=True)
class Observed:
    """A chain, its calls (those that gradients reach), and whether a block keeps values of two lengths, as attention's
    scores are."""

    chain: Chain
    order: list[nn.Module]
    quadratic: bool


def observed(
    order: Sequence[nn.Module],
    loss_of: Loss,
    lengths: Collection[int] = (),
    flops_per_s: float = 1e12,
    model: nn.Module | None = None,
) -> Observed:
    """The chain of a model's calls of blocks, by two passes that are metered; seconds are FLOPs over a rate.

    ``order``: the module of each call, in the order of a pass; ``lengths``: sizes of its inputs. The passes add to
    gradients, and buffers and randomness move on: call it under :func:`suite.model.calls.untrained`, and let
    ``loss_of`` clear gradients. A call that these passes leave out, as training may, costs what another of its class
    does. Raises ValueError where no gradient reaches a block.
    """
    whole, early = (_metered(order, loss_of, each, frozenset(lengths), model) for each in (False, True))
    reached = [index for index in range(len(order)) if index in whole.came_back or index not in whole.inputs]
    if not whole.came_back:
        raise ValueError("no gradient reaches a block of the model: train some of them")
    if len(reached) < len(order):
        return observed([order[index] for index in reached], loss_of, lengths, flops_per_s, model)
    return Observed(_chain(order, whole, early, flops_per_s), list(order), whole.quadratic)


def _metered(
    order: Sequence[nn.Module], loss_of: Loss, early: bool, lengths: frozenset[int], model: nn.Module | None
) -> Log:
    flops, live = FlopCounter(), NamedHigh()

    def read() -> Reading:
        high_bytes, maker = live.high_bytes, live.where()
        return Reading(live.mark(), high_bytes, flops.total, maker)

    log = Log(read, early, lengths=lengths, sized=True)
    devices = {each.device for each in order[0].parameters() if each.is_cuda}
    reruns = Reruns(order, each_again(len(order)), log, model)
    with torch.random.fork_rng(devices), flops, live, reruns.installed():
        value = loss_of()
        value.backward()
        del value
        log.note("end", -1)
    log.inputs = {
        index: {key: size for key, size in sizes.items() if key in live.made} for index, sizes in log.inputs.items()
    }
    return log


@dataclass
class _Call:
    """One call's readings, by event; ``until``: the high and FLOPs from its gradient's arrival to the next one's."""

    at: dict[str, Reading] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)  # FLOPs since the event before
    back_high_bytes: int = 0  # behind its rerun
    back_flops: int = 0


def _chain(order: Sequence[nn.Module], whole: Log, early: Log, flops_per_s: float) -> Chain:
    calls, hurried = _by_call(whole, len(order)), _by_call(early, len(order))
    ran = sorted(whole.inputs)
    values, gradients = _Values.of(whole, ran), _own_gradients(order, ran)
    stages, beside, before, later = dict[int, Stage](), dict[int, Surroundings](), 0, sum(gradients.values())
    for number, k in enumerate(ran):
        one = calls[k]
        begun, ended, back = one.at["run"], one.at["runed"], one.at["back"]
        again, agained = one.at.get("again", back), one.at.get("agained", back)
        graph_bytes = max(0, agained.live_bytes - again.live_bytes)
        saved_bytes, holds_input, holds_output = values.graph(number, graph_bytes)
        before, later = before + values.inputs[number], later - gradients[k]
        output_bytes = values.inputs[number + 1]
        between = begun.high_bytes - before - beside[ran[number - 1]].forward_bytes if number else 0
        backward_bytes = back.live_bytes - before - later - output_bytes
        beside[k] = Surroundings(begun.live_bytes - before, backward_bytes, between)
        run_peak, behind = ended.high_bytes - begun.live_bytes, one.back_high_bytes - back.live_bytes - graph_bytes
        quick = hurried[k].at
        stages[k] = Stage(
            run_s=one.since["runed"] / flops_per_s,
            save_s=one.since["runed"] / flops_per_s,
            back_s=one.back_flops / flops_per_s,
            output_bytes=output_bytes,
            saved_bytes=(saved_bytes,),
            run_peak_bytes=run_peak,
            save_peak_bytes=max(agained.high_bytes - back.live_bytes, run_peak),
            back_peak_bytes=max(0, behind) + _vector_bytes(order[k]),
            holds_input=holds_input,
            holds_output=holds_output,
            gradient_bytes=gradients[k],
            weight_bytes=unique_bytes(order[k].parameters()),
            again_s=hurried[k].since.get("agained", 0) / flops_per_s,
            again_peak_bytes=quick["agained"].high_bytes - quick["back"].live_bytes if "agained" in quick else 0,
            state_bytes=whole.states.get(k, 0),
            cached_bytes=sum(whole.caches.get(k, {}).values()),
        )
    like = [_twin(order, k, ran) for k in range(len(order))]
    first, last, turn = (calls[k].at[name] for k, name in ((ran[0], "run"), (ran[-1], "run"), (ran[-1], "back")))
    pass_s = (whole.events[-1][1].flops - sum(one.since.get("agained", 0) for one in calls)) / flops_per_s
    turn_s = calls[ran[-1]].since["back"] / flops_per_s
    return Chain(
        tuple(stages[k] for k in like),
        values.inputs[0],
        forward_bytes=max(each.forward_bytes for each in beside.values()),
        backward_bytes=max(each.backward_bytes for each in beside.values()),
        turn_s=turn_s,
        turn_peak_bytes=turn.high_bytes - last.live_bytes,
        outside_bytes=first.high_bytes,
        outside_s=pass_s - turn_s - sum(stage.save_s + stage.back_s for stage in stages.values()),
        pass_s=pass_s,
        beside=tuple(beside[k] for k in like),
        turn_of=f"between the last block and its backward pass{turn.maker}",
        outside_of=f"before the first block{first.maker}",
    )


def _twin(order: Sequence[nn.Module], k: int, ran: Sequence[int]) -> int:
    """The call itself or, of one that did not run, the nearest of its class that did."""
    return min(ran, key=lambda other: (other != k, type(order[other]) is not type(order[k]), abs(other - k)))


@dataclass(frozen=True)
class _Values:
    """Which values are the chain's: ``inputs``, bytes by call, of what one call made and the next alone reads; ``own``,
    their storages. What several calls read, or the model made between two, lives beside the chain."""

    log: Log
    ran: list[int]
    inputs: list[int]
    own: list[set[int]]

    @classmethod
    def of(cls, log: Log, ran: list[int]) -> _Values:
        got = [log.inputs[k] for k in ran]
        uses = Counter(key for sizes in got for key in sizes)
        made = [set(got[0]), *(set().union(*log.outputs[k]) for k in ran[:-1])]
        own = [
            {key for key in sizes if uses[key] == 1 and key in before} for sizes, before in zip(got, made, strict=True)
        ]
        inputs = [sum(sizes[key] for key in keys) for sizes, keys in zip(got, own, strict=True)]
        return cls(log, ran, [*inputs, inputs[-1]], [*own, set()])

    def graph(self, number: int, nbytes: int) -> tuple[int, bool, bool]:
        """A call's graph of so many new bytes: its own, and whether it holds the call's input and its output."""
        k = self.ran[number]
        saved = self.log.graphs.get(k, {})
        later = {key for other in self.ran[number + 1 :] for key in self.log.inputs[other]}
        holds_output = False
        for first, again in zip(self.log.outputs[k], self.log.remade.get(k, []), strict=False):
            held = sum(saved[key] for key in again & saved.keys())
            if held and first & self.own[number + 1]:
                holds_output = True
                nbytes -= held
            elif held and first & later:  # beside the chain in any case
                nbytes -= held
        return max(0, nbytes), bool(saved.keys() & self.log.inputs[k].keys()), holds_output


def _by_call(log: Log, depth: int) -> list[_Call]:
    calls = [_Call() for _ in range(depth)]
    before, due = 0, depth
    for (name, index), reading in log.events:
        spent = reading.flops - before
        before = reading.flops
        if index >= 0:
            calls[index].at[name] = reading
            calls[index].since[name] = spent
        if name in ("back", "again", "end") and due < depth:  # what came before it belongs to the call that was due
            calls[due].back_flops += spent
            calls[due].back_high_bytes = max(calls[due].back_high_bytes, reading.high_bytes)
        if name == "back":
            due = index
    return calls


def _vector_bytes(block: nn.Module) -> int:
    """The largest bias's, whose gradient autograd sums before it lets go of what the product saved."""
    return max((unique_bytes([each]) for each in block.parameters() if each.ndim == 1), default=0)


def _own_gradients(order: Sequence[nn.Module], ran: Sequence[int]) -> dict[int, int]:
    """Bytes of the gradients that a call's backward pass makes first."""
    there: set[int] = set()
    found = {}
    for k in reversed(ran):
        new = [each for each in order[k].parameters() if each.requires_grad and id(each) not in there]
        there |= {id(each) for each in new}
        found[k] = unique_bytes(new)
    return found


def clocked(
    chain: Chain, order: Sequence[nn.Module], loss_of: Loss, passes: int = PASSES, model: nn.Module | None = None
) -> Chain:
    """The chain with the clock's seconds: medians over ``passes``, after one that does not count.

    What a call costs that runs again is the difference of a pass in which each does, hooks and all, and a plain one.
    """
    clock = Clock(next(order[0].parameters()).device)
    samples: dict[Event, list[float]] = {}
    for repetition in range(passes + 1):
        for items in ([], each_again(len(order))):
            log = Log(clock.now_s)
            began_s = clock.now_s()
            with Reruns(order, items, log, model).installed():
                loss_of().backward()
                log.note("end", -1)
            for event, seconds in _durations(log, began_s, bool(items)).items():
                if repetition:
                    samples.setdefault(event, []).append(seconds)
    at = {event: statistics.median(each) for event, each in samples.items()}
    stages = tuple(
        replace(
            stage,
            run_s=at.get(("run", k), stage.run_s),
            save_s=at.get(("save", k), stage.save_s),
            back_s=at.get(("plain back", k), 0.0),
            again_s=at.get(("again", k), 0.0) + max(0.0, at.get(("back", k), 0.0) - at.get(("plain back", k), 0.0)),
        )
        for k, stage in enumerate(chain.stages)
    )
    inside = sum(stage.save_s + stage.back_s for stage in stages)
    turn_s = at.get(("turn", -1), 0.0)
    return replace(
        chain, stages=stages, turn_s=turn_s, pass_s=at["pass", -1], outside_s=at["pass", -1] - inside - turn_s
    )


def _durations(log: Log, began_s: float, again: bool) -> dict[Event, float]:
    """Seconds of calls, of their reruns, and of their ways back without these."""
    found: defaultdict[Event, float] = defaultdict(float)
    before_s, due = began_s, -2
    for (name, index), now_s in log.events:
        spent = now_s - before_s
        before_s = now_s
        if name in ("runed", "saveed"):
            found[name.removesuffix("ed"), index] += spent
        elif name == "agained":
            found["again", index] += spent
        elif name in ("back", "again", "end"):
            if due >= 0:
                found["back" if again else "plain back", due] += spent
            elif name == "back":
                found["turn", -1] += spent if not again else 0.0
        if name == "back":
            due = index
    if not again:
        found["pass", -1] = log.events[-1][1] - began_s
    return dict(found)
