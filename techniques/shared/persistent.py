"""Finds the best memory-persistent schedules of a chain, within every budget at once (Herrmann et al., 2019, section
4).

A schedule is persistent if what it keeps stays until its last use. The fastest one over blocks a..b, whose input x_a is
there, is then one of

    keep       F_a, the fastest over a+1..b, B_a
    split at j  f_a ... f_{j-1}, the fastest over j..b while x_j is kept for it, the fastest over a..j-1

The paper tabulates its time by memory in slots. Here the table of a..b is a frontier: the bytes at which its time
falls, and the time from there on. Nothing is rounded, and one table answers every budget. Only a frontier of more than
``SLOTS`` points has its bytes rounded up to slots, so that a schedule never needs more than the table says.

The turn is the chain's last block, L. What lives beside the chain depends on b alone: before the turn (b = L) what the
forward pass has there; after it what the backward pass has, the gradient of x_{b+1}, and later blocks' weights'.

The paper has x_a in the graph of the block that reads it. A graph may hold what its block makes instead: where block
a - 1 keeps such a graph, x_a stays for as long, whatever a..b do with it. These ranges have a second frontier, *held*.

For rotor, and for what joins recomputation and offloading; kusumoto_dp has the bytes of a block from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op

SLOTS = 500  # the paper's
TICKS = 2**40  # of a plain pass: whole numbers, so that equal blocks have equal times in any order of summation
KEEP = -1

Integers = NDArray[np.int64]


class Frontier(NamedTuple):
    """Says that from ``nbytes[i]`` on (rising) a range takes ``ticks[i]`` (falling), by ``ways[i]``: KEEP, or where it
    splits."""

    nbytes: Integers
    ticks: Integers
    ways: Integers

    def at(self, nbytes: int) -> int:
        """Returns the index of the fastest within ``nbytes``; -1 where there is none."""
        return int(np.searchsorted(self.nbytes, nbytes, "right")) - 1

    def ticks_at(self, nbytes: Integers) -> Integers:
        """Returns the least time within each of these, none of which is below the least."""
        return self.ticks[np.searchsorted(self.nbytes, nbytes, "right") - 1]


class Persistent:
    """Holds the frontiers of all ranges of a chain, ends included; block L is the turn.

    A range's bytes are all that is on the device while it runs, but for x_a and for what the chain keeps outside it.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.tick_s = chain.plain_s / TICKS or 1.0
        self.beside = beside_bytes(chain)
        graphs = sum(stage.graph_bytes for stage in chain.stages)
        self.slot_bytes = max(1, -(-(sum(chain.activation_bytes) + graphs + max(self.beside)) // SLOTS))
        self.run_ticks = [0, *accumulate(self._ticks(stage.run_s) for stage in chain.stages)]
        self.frontiers: dict[tuple[int, int], Frontier] = {}
        self.held: dict[tuple[int, int], Frontier] = {}  # where block a - 1's graph is kept, and holds x_a
        for b in range(chain.depth + 1):
            for a in range(b, -1, -1):
                self.frontiers[a, b] = self._frontier(a, b, held=False)
                if a and chain.stages[a - 1].holds_output:
                    self.held[a, b] = self._frontier(a, b, held=True)

    @property
    def least_bytes(self) -> int:
        """Returns the smallest budget of the whole chain."""
        return max(int(self._whole.nbytes[0]) + self.chain.input_bytes, self.chain.outside_bytes)

    def seconds(self, budget_bytes: int) -> float:
        """Returns the time of the fastest schedule within a budget that is not below the least."""
        return float(self._whole.ticks[self._whole.at(budget_bytes - self.chain.input_bytes)]) * self.tick_s

    def ops(self, a: int, b: int, nbytes: int, held: bool = False) -> Iterator[Op]:
        """Yields what computes in the fastest schedule of a range within ``nbytes``; ``held``: whether block a - 1's
        graph keeps x_a. Raises Infeasible."""
        frontier = (self.held if held else self.frontiers)[a, b]
        index = frontier.at(nbytes)
        if index < 0:
            raise Infeasible(f"the range from block {a} to {b}", nbytes, int(frontier.nbytes[0]))
        way = int(frontier.ways[index])
        if a == self.chain.depth:
            yield TURN
        elif way == KEEP:
            yield Op("save", a)
            if a < b:
                cost = kept_bytes(self.chain, a, held)
                yield from self.ops(a + 1, b, nbytes - cost, self.chain.stages[a].holds_output)
            yield Op("back", a)
        else:
            yield from (Op("run", k) for k in range(a, way))
            yield from self.ops(way, b, nbytes - self.chain.activation_bytes[way])
            yield from self.ops(a, way - 1, nbytes, held)

    @property
    def _whole(self) -> Frontier:
        return self.frontiers[0, self.chain.depth]

    def _ticks(self, seconds: float) -> int:
        return round(seconds / self.tick_s)

    def _frontier(self, a: int, b: int, held: bool) -> Frontier:
        if a == b == self.chain.depth:
            turn = turn_bytes(self.chain, held)
            return _points([(np.array([turn]), np.array([self._ticks(self.chain.turn_s)]), KEEP)])
        stage, sizes = self.chain.stages[a], self.chain.activation_bytes
        there, back = self.beside[b] + max(stage.save_peak_bytes, stage.graph_bytes), back_bytes(self.chain, a, held)
        ticks = self._ticks(stage.save_s) + self._ticks(stage.back_s)
        if a == b:
            return _points([(np.array([max(there, back)]), np.array([ticks]), KEEP)])
        inner, cost = (self.held if stage.holds_output else self.frontiers)[a + 1, b], kept_bytes(self.chain, a, held)
        ways = [(np.maximum(inner.nbytes + cost, max(there, back)), inner.ticks + ticks, KEEP)]
        running = 0
        for j in range(a + 1, b + 1):
            before = self.chain.stages[j - 1]
            own = sizes[j - 1] if j - 1 > a else 0
            running = max(running, self.beside[b] + own + max(before.run_peak_bytes, before.output_bytes))
            inner, rest = self.frontiers[j, b], (self.held if held else self.frontiers)[a, j - 1]
            nbytes = np.concatenate((inner.nbytes + sizes[j], rest.nbytes))
            nbytes = np.unique(np.maximum(nbytes, max(running, inner.nbytes[0] + sizes[j], rest.nbytes[0])))
            runs = self.run_ticks[j] - self.run_ticks[a]
            ways.append((nbytes, runs + inner.ticks_at(nbytes - sizes[j]) + rest.ticks_at(nbytes), j))
        frontier = _points(ways)
        if len(frontier.nbytes) > SLOTS:
            slots = -(-frontier.nbytes // self.slot_bytes) * self.slot_bytes
            slots[0] = frontier.nbytes[0]  # the least stays feasible
            frontier = _best(slots, frontier.ticks, frontier.ways)
        return frontier


@lru_cache(maxsize=32)
def persistent(chain: Chain) -> Persistent:
    """Builds the chain's table, which every budget shares."""
    return Persistent(chain)


@lru_cache(maxsize=32)
def beside_bytes(chain: Chain) -> tuple[int, ...]:
    """Counts the bytes that are neither activations nor graphs while a range that ends at b runs, by b."""
    after = [0, *accumulate(stage.gradient_bytes for stage in reversed(chain.stages))][-2::-1]
    back = [chain.backward_bytes + later + stage.output_bytes for later, stage in zip(after, chain.stages, strict=True)]
    return (*back, chain.forward_bytes)


def kept_bytes(chain: Chain, a: int, held: bool) -> int:
    """Counts what block a's kept graph takes from the blocks behind it, their input with it; ``held``: whether block a
    - 1's graph keeps x_a."""
    return chain.stages[a].graph_bytes - _freed(chain, a, held)


def back_bytes(chain: Chain, a: int, held: bool) -> int:
    """Counts the bytes of block a's backward pass, all in all but what earlier blocks keep, x_a with it."""
    stage = chain.stages[a]
    own = sum(stage.saved_bytes) + stage.output_bytes * stage.holds_output
    left = stage.gradient_bytes + chain.activation_bytes[a] - stage.output_bytes - own
    return beside_bytes(chain)[a] + own - _freed(chain, a, held) + max(stage.back_peak_bytes, left)


def turn_bytes(chain: Chain, held: bool) -> int:
    """Counts the bytes of the turn, all in all but what the blocks keep, x_L with it."""
    left = chain.backward_bytes + chain.activation_bytes[-1] - chain.forward_bytes
    freed = 0 if held else chain.activation_bytes[-1]
    return chain.forward_bytes + max(chain.turn_peak_bytes, left) - freed


def _freed(chain: Chain, a: int, held: bool) -> int:
    """Counts the bytes of x_a, where nothing needs it once block a's graph is there."""
    return 0 if held or chain.stages[a].holds_input else chain.activation_bytes[a]


def _points(ways: list[tuple[Integers, Integers, int]]) -> Frontier:
    nbytes = np.concatenate([nbytes for nbytes, _, _ in ways])
    ticks = np.concatenate([ticks for _, ticks, _ in ways])
    return _best(nbytes, ticks, np.repeat([way for _, _, way in ways], [len(nbytes) for nbytes, _, _ in ways]))


def _best(nbytes: Integers, ticks: Integers, ways: Integers) -> Frontier:
    """Keeps the points that are faster than all that need no more bytes."""
    order = np.lexsort((ways, ticks, nbytes))
    nbytes, ticks, ways = nbytes[order], ticks[order], ways[order]
    faster = np.concatenate(([True], ticks[1:] < np.minimum.accumulate(ticks)[:-1]))
    return Frontier(nbytes[faster], ticks[faster], ways[faster])
