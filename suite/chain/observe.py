"""Observes a chain's costs on autograd's own graph: passes in which each call of a block runs again, watched call by
call.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

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
"""What happened, and at which call: run, save, again begin, ...ed: end; back: its output has its gradient; left: the
first one's input has."""

PASSES = 9  # of the clock


@dataclass(frozen=True)
class Reading:
    """Holds what the meters say at an event: ``high_bytes`` since the event before."""

    live_bytes: int
    high_bytes: int
    flops: int
    maker: str = ""


@dataclass
class Log:
    """Records the events of a pass in their order, each with what ``read`` said. A watch of :class:`Reruns`."""

    read: Callable[[], Any]
    early: bool = True
    events: list[tuple[Event, Any]] = field(default_factory=list)
    inputs: dict[int, dict[int, int]] = field(default_factory=dict)  # bytes by storage
    outputs: dict[int, list[set[int]]] = field(default_factory=dict)  # storages, tensor by tensor
    remade: dict[int, list[set[int]]] = field(default_factory=dict)  # the same, of a rerun
    graphs: dict[int, dict[int, int]] = field(default_factory=dict)  # in the order of saving
    made: dict[int, set[int]] = field(default_factory=dict)  # storages of a graph that its rerun made
    there: set[int] = field(default_factory=set)  # as the last rerun began
    caches: dict[int, dict[int, int]] = field(default_factory=dict)  # what only a key-value cache holds of a call
    came_back: set[int] = field(default_factory=set)
    states: dict[int, int] = field(default_factory=dict)  # bytes of the random state that a call found first
    random: list[RandomState] = field(default_factory=list)
    lengths: frozenset[int] = frozenset()
    quadratic: bool = False
    alive: Callable[[], set[int]] | None = None  # storages, where bytes are read

    def note(self, name: str, index: int) -> None:
        self.events.append(((name, index), self.read()))

    @contextmanager
    def around(self, kind: Kind, index: int, rerun: bool) -> Iterator[None]:
        self.note("again" if rerun else kind, index)
        if rerun and self.alive is not None:
            self.there = self.alive()
        yield
        if not rerun:
            self.note(f"{kind}ed", index)

    def called(self, index: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], rerun: bool) -> None:
        if self.alive is not None:
            (self.remade if rerun else self.outputs)[index] = [{s._cdata for s in storages(each)} for each in outputs]
        if rerun:
            return
        if self.alive is not None:
            self.inputs[index] = {s._cdata: s.nbytes() for each in inputs for s in storages(each)}
        for each in outputs:
            if each.requires_grad and not each.is_leaf:
                each.register_hook(partial(self._back, index))
        if index == 0 and inputs and inputs[0].requires_grad and not inputs[0].is_leaf:
            inputs[0].register_hook(lambda _: self.note("left", 0))

    def began(self, index: int, random: RandomState) -> None:
        if not any(random is each for each in self.random):
            self.random.append(random)
            self.states[index] = unique_bytes([random.cpu])

    def _back(self, index: int, _: Tensor) -> None:
        if index not in self.came_back:
            self.came_back.add(index)
            self.note("back", index)

    def cached(self, index: int, items: Sequence[Any]) -> None:
        if self.alive is not None:
            tensors = [each for each in items if isinstance(each, Tensor)]
            self.caches[index] = {s._cdata: s.nbytes() for each in tensors for s in storages(each)}

    def filled(self, span: Span, values: Sequence[Tensor]) -> None:
        self.note("agained", span.start)
        if self.alive is not None:
            self.quadratic |= any(sum(size in self.lengths for size in each.shape) > 1 for each in values)
            saved = self.graphs[span.start] = {s._cdata: s.nbytes() for each in values for s in storages(each)}
            self.made[span.start] = saved.keys() - self.there
            own = {key: size for key, size in self.caches.get(span.start, {}).items() if key not in saved}
            self.caches[span.start] = own


def each_again(calls: int) -> list[Span]:
    """Returns the spans in which every call runs again by itself."""
    return [Span(index, index + 1, (index,)) for index in range(calls)]


@dataclass(frozen=True)
class Observed:
    """Holds a chain, its calls (those that gradients reach), and whether a block keeps values of two lengths, as
    attention's scores are."""

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
    """Measures the chain of a model's calls of blocks, by two passes that are metered; seconds are FLOPs over a rate.

    ``order``: the module of each call, in the order of a pass; ``lengths``: sizes of its inputs. The passes add to
    gradients, and buffers and randomness move on: call it under :func:`suite.model.calls.untrained`, and let
    ``loss_of`` clear gradients. A call that these passes leave out, as training may, costs what another of its class
    does. Raises ValueError where no gradient reaches a block.
    """
    whole, early = (_metered(order, loss_of, each, frozenset(lengths), model) for each in (False, True))
    reached = [index for index in range(len(order)) if index in whole.came_back or index not in whole.inputs]
    if not whole.came_back:
        raise ValueError(UNREACHED)
    if len(reached) < len(order):
        return observed([order[index] for index in reached], loss_of, lengths, flops_per_s, model)
    (chain,) = _Chains(order, whole, early, flops_per_s).of([range(len(order))])
    return Observed(chain, list(order), whole.quadratic)


def observed_stacks(
    stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, flops_per_s: float = 1e12
) -> tuple[Chain, ...]:
    """Returns the chain of each stack of blocks, in the order in which the model runs them; a later one's whole pass
    lies in the turn of the one before it. Their reruns go to their ends, as papers count them, and random states, which
    are on the host, count nothing. Otherwise as :func:`observed`."""
    order = [block for blocks in stacks for block in blocks]
    whole = _metered(order, loss_of, False, frozenset(), None)
    starts = [0, *accumulate(map(len, stacks))]
    spans = [range(start, end) for start, end in pairwise(starts)]
    if not all(any(index in whole.came_back for index in span) for span in spans):
        raise ValueError(UNREACHED)
    return _Chains(order, whole, None, flops_per_s).of(spans)


UNREACHED = "no gradient reaches a block of the model: train some of them"


def _metered(
    order: Sequence[nn.Module], loss_of: Loss, early: bool, lengths: frozenset[int], model: nn.Module | None
) -> Log:
    flops, live = FlopCounter(), NamedHigh()

    def read() -> Reading:
        high_bytes, maker = live.high_bytes, live.where()
        return Reading(live.mark(), high_bytes, flops.total, maker)

    log = Log(read, early, lengths=lengths, alive=live.alive)
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
    """Holds one call's readings, by event; ``until``: the high and FLOPs from its gradient's arrival to the next
    one's."""

    at: dict[str, Reading] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)  # FLOPs since the event before
    back_high_bytes: int = 0  # behind its rerun
    back_flops: int = 0


class _Chains:
    """Computes chains from what the passes say: ``whole``, whose reruns go to their ends, and ``early``, whose do not,
    or None where no rerun is to end early."""

    def __init__(self, order: Sequence[nn.Module], whole: Log, early: Log | None, flops_per_s: float) -> None:
        self.order, self.whole, self.early, self.flops_per_s = order, whole, early, flops_per_s
        self.calls = _by_call(whole, len(order))
        self.hurried = _by_call(early, len(order)) if early is not None else None

    def of(self, spans: Sequence[range]) -> tuple[Chain, ...]:
        """Returns one chain for each span of calls; the first has what a pass takes besides."""
        chains, held = list[Chain](), 0
        for number, span in enumerate(spans):
            following = spans[number + 1] if number + 1 < len(spans) else range(0)
            ran = [index for index in span if index in self.whole.inputs]
            chain = self._chain(span, ran, held, next((k for k in following if k in self.whole.inputs), None))
            chains.append(chain)
            held += sum(chain.activation_bytes[: len(ran)])
        spent = sum(one.since.get("agained", 0) for one in self.calls)
        pass_s = (self.whole.events[-1][1].flops - spent) / self.flops_per_s
        begun, ended = self.calls[min(self.whole.inputs)].at["run"], self.whole.events[-1][1]
        peaks = [(begun.high_bytes, f"before the first block{begun.maker}")]
        if "left" in self.calls[0].at:
            peaks.append((ended.high_bytes, f"behind the first block's backward pass{ended.maker}"))
        outside_bytes, what = max(peaks)
        chains[0] = replace(chains[0], outside_bytes=outside_bytes, outside_of=what)
        return _around(chains, pass_s)

    def _chain(self, span: range, ran: Sequence[int], held: int, following: int | None) -> Chain:
        """Returns the chain of a span; ``held``: by chains before it; ``following``: the first call of the one behind
        it."""
        values, gradients = _Values.of(self.whole, list(ran)), _own_gradients(self.order, ran)
        stages, beside = dict[int, Stage](), dict[int, Surroundings]()
        before, later = held, sum(gradients.values())
        for number, k in enumerate(ran):
            at = self.calls[k].at
            before, later = before + values.inputs[number], later - gradients[k]
            between = at["run"].high_bytes - before - beside[ran[number - 1]].forward_bytes if number else 0
            back_bytes = at["back"].live_bytes - before - later - values.inputs[number + 1]
            beside[k] = Surroundings(at["run"].live_bytes - before, back_bytes, between)
            stages[k] = self._stage(k, number, values, gradients[k])
        like = [_twin(self.order, k, ran) for k in span]
        ended = self.calls[ran[-1] if following is None else following]
        turn = "back" if following is None else "run"
        return Chain(
            tuple(stages[k] for k in like),
            values.inputs[0],
            forward_bytes=max(each.forward_bytes for each in beside.values()),
            backward_bytes=max(each.backward_bytes for each in beside.values()),
            turn_s=ended.since[turn] / self.flops_per_s,
            turn_peak_bytes=ended.at[turn].high_bytes - self.calls[ran[-1]].at["run"].live_bytes,
            beside=tuple(beside[k] for k in like),
            turn_of=f"between the last block and its backward pass{ended.at[turn].maker}",
        )

    def _stage(self, k: int, number: int, values: _Values, gradient_bytes: int) -> Stage:
        one, block = self.calls[k], self.order[k]
        begun, ended, back = one.at["run"], one.at["runed"], one.at["back"]
        again, agained = one.at.get("again", back), one.at.get("agained", back)
        graph_bytes = max(0, agained.live_bytes - again.live_bytes)
        graph = values.graph(number, graph_bytes)
        run_peak, behind = ended.high_bytes - begun.live_bytes, one.back_high_bytes - back.live_bytes - graph_bytes
        stage = Stage(
            run_s=one.since["runed"] / self.flops_per_s,
            save_s=one.since["runed"] / self.flops_per_s,
            back_s=one.back_flops / self.flops_per_s,
            output_bytes=values.inputs[number + 1],
            saved_bytes=graph.saved_bytes,
            run_peak_bytes=run_peak,
            save_peak_bytes=max(agained.high_bytes - back.live_bytes, run_peak),
            back_peak_bytes=max(0, behind),
            holds_input=graph.holds_input,
            holds_output=graph.holds_output,
            stays=graph.stays,
            gradient_bytes=gradient_bytes,
            weight_bytes=unique_bytes(block.parameters()),
        )
        if self.hurried is None:
            return stage
        quick = self.hurried[k]
        return replace(
            stage,
            again_s=quick.since.get("agained", 0) / self.flops_per_s,
            again_peak_bytes=quick.at["agained"].high_bytes - quick.at["back"].live_bytes
            if "agained" in quick.at
            else 0,
            state_bytes=self.whole.states.get(k, 0),
            cached_bytes=sum(self.whole.caches.get(k, {}).values()),
        )


def _twin(order: Sequence[nn.Module], k: int, ran: Sequence[int]) -> int:
    """Returns the call itself or, of one that did not run, the nearest of its class that did."""
    return min(ran, key=lambda other: (other != k, type(order[other]) is not type(order[k]), abs(other - k)))


class _Graph(NamedTuple):
    """Holds fields of :class:`suite.chain.chain.Stage`; the storages in the order of saving."""

    saved_bytes: tuple[int, ...]
    holds_input: bool
    holds_output: bool
    stays: bool


@dataclass(frozen=True)
class _Values:
    """Says which values are the chain's: ``inputs``, bytes by call, of what one call made and the next alone reads;
    ``own``, their storages. What several calls read, or the model made between two, lives beside the chain."""

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

    def graph(self, number: int, nbytes: int) -> _Graph:
        """Returns a call's graph, of so many new bytes."""
        k = self.ran[number]
        saved, made = self.log.graphs.get(k, {}), self.log.made.get(k, set())
        later = {key for other in self.ran[number + 1 :] for key in self.log.inputs[other]}
        holds_output, outputs = False, set[int]()
        for first, again in zip(self.log.outputs[k], self.log.remade.get(k, []), strict=False):
            held = again & made
            if held and first & (self.own[number + 1] | later):  # later: beside the chain in any case
                holds_output |= bool(first & self.own[number + 1])
                outputs |= held
        sizes = [size for key, size in saved.items() if key in made - outputs]
        unseen = nbytes - sum(sizes) - sum(saved[key] for key in outputs)
        sizes += [unseen] if unseen > 0 else []
        return _Graph(tuple(sizes), bool(saved.keys() & self.log.inputs[k].keys()), holds_output, unseen > 0)


def _by_call(log: Log, depth: int) -> list[_Call]:
    calls = [_Call() for _ in range(depth)]
    for name, index, reading, spent, back in _spent(log, 0, attrgetter("flops")):
        if index >= 0:
            calls[index].at[name] = reading
            calls[index].since[name] = spent
        if back is not None:
            calls[back].back_flops += spent
            calls[back].back_high_bytes = max(calls[back].back_high_bytes, reading.high_bytes)
    return calls


def _spent(log: Log, began: Any, amount: Callable[[Any], Any]) -> Iterator[tuple[str, int, Any, Any, int | None]]:
    """Each event, with what was read, the ``amount`` of that since the event before, and, where a call's way back took
    it, this call."""
    before, due = began, None
    for (name, index), reading in log.events:
        spent, before = amount(reading) - before, amount(reading)
        yield name, index, reading, spent, due if name in ("back", "again", "left", "end") else None
        if name in ("back", "left"):
            due = index if name == "back" else None


def _own_gradients(order: Sequence[nn.Module], ran: Sequence[int]) -> dict[int, int]:
    """Returns the bytes of the gradients that a call's backward pass makes first."""
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
    """Returns the chain with the clock's seconds: medians over ``passes``, after one that does not count.

    What a call costs that runs again is the difference of a pass in which each does, hooks and all, and a plain one.
    """
    at = _seconds(order, loss_of, passes, early=True, model=model)
    turn_s = at.get(("turn", -1), 0.0)
    stages = tuple(_timed(stage, at, k) for k, stage in enumerate(chain.stages))
    return _around([replace(chain, stages=stages, turn_s=turn_s)], at["pass", -1])[0]


def clocked_stacks(
    chains: Sequence[Chain], stacks: Sequence[Sequence[nn.Module]], loss_of: Loss, passes: int = PASSES
) -> tuple[Chain, ...]:
    """Returns the stacks' chains with the clock's seconds, as :func:`clocked`; their reruns go to their ends."""
    order = [block for blocks in stacks for block in blocks]
    at = _seconds(order, loss_of, passes, early=False)
    starts = [0, *accumulate(map(len, stacks))]
    timed = []
    for chain, (start, end) in zip(chains, pairwise(starts), strict=True):
        stages = tuple(_timed(stage, at, start + k) for k, stage in enumerate(chain.stages))
        turn = ("turn", -1) if end == len(order) else ("before", end)
        timed.append(replace(chain, stages=stages, turn_s=at.get(turn, 0.0)))
    return _around(timed, at["pass", -1])


def _seconds(
    order: Sequence[nn.Module], loss_of: Loss, passes: int, early: bool, model: nn.Module | None = None
) -> dict[Event, float]:
    """Returns the medians of what calls take in passes in which each runs again, and in plain ones."""
    clock = Clock(next(order[0].parameters()).device)
    samples: dict[Event, list[float]] = {}
    for repetition in range(passes + 1):
        for items in ([], each_again(len(order))):
            log = Log(clock.now_s, early)
            began_s = clock.now_s()
            with Reruns(order, items, log, model).installed():
                loss_of().backward()
                log.note("end", -1)
            for event, seconds in _durations(log, began_s, bool(items)).items():
                if repetition:
                    samples.setdefault(event, []).append(seconds)
    return {event: statistics.median(each) for event, each in samples.items()}


def _timed(stage: Stage, at: Mapping[Event, float], k: int) -> Stage:
    """Returns a call's stage with seconds; where a last rerun costs what another does, it is one run of the block."""
    again_s = at.get(("again", k), 0.0) + max(0.0, at.get(("back", k), 0.0) - at.get(("plain back", k), 0.0))
    return replace(
        stage,
        run_s=at.get(("run", k), stage.run_s),
        save_s=at.get(("save", k), stage.save_s),
        back_s=at.get(("plain back", k), 0.0),
        again_s=again_s if stage.again_s is not None else None,
    )


def _around(chains: Sequence[Chain], pass_s: float) -> tuple[Chain, ...]:
    """Returns the chains of a pass of so many seconds, whose first has what is outside of all."""
    outside_s = pass_s - sum(chain.plain_s for chain in chains)
    return replace(chains[0], pass_s=pass_s, outside_s=outside_s), *chains[1:]


def _durations(log: Log, began_s: float, again: bool) -> dict[Event, float]:
    """Returns the seconds of calls, of their reruns, and of their ways back without these."""
    found: defaultdict[Event, float] = defaultdict(float)
    for name, index, _, seconds, back in _spent(log, began_s, float):
        if back is not None:
            found["back" if again else "plain back", back] += seconds
        elif name in ("run", "save"):
            found["before", index] += seconds
        elif name in ("runed", "saveed", "agained"):
            found[name.removesuffix("ed"), index] += seconds
        elif name == "back" and not again:
            found["turn", -1] += seconds
    if not again:
        found["pass", -1] = log.events[-1][1] - began_s
    return dict(found)
