"""Chooses what should leave so that a pass is fastest within a budget: a dynamic programme from value to value.

    forward     F0 >v0   F1 >v1   ~v0 F2 >v2   ~v2        v_i: the chosen values of block i
    backward    |   <v2 B2   <v1 B1   <v0 B0              the same pass, read from its end

Values leave in the order in which they are saved and come back in the reverse one. Each leaves as soon as the link is
free; computation waits for as few as make room for the next operation; each comes back as soon as there is room for it
until its use. All have left when the backward pass begins, and none comes back before the last forward pass has ended.
Of the passes of this kind in which a set of values leaves, :func:`hurried` makes the fastest.

An operation's *need* is by how much a plain pass exceeds the budget in it: so many bytes must be away. A backward pass
is, in reversed time, a forward pass of the same kind, whose values leave behind B_i. So one walk over the values
decides which leave and follows both passes:

    state    seconds waited so far, bytes that leave and, for each pass, how long its link is still busy and when as
             much is away as each later operation needs
    front    the states that no other makes needless: one of which no less leaves, and which could wait until nothing
             of it comes later and would still have waited no longer

No set of values is faster unless a front was cut. What is cut to goes by a bound: what a state has waited, and what it
will if all that is still needed leaves at once, bytes by the link's rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, Value, plain, tidied
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak, nbytes, plain_fits

WORK = 1.2e6  # pairs of states compared in all, about: a second for 48 blocks of 14 values, whose fronts keep 42
SHARES = 16  # of the bytes needed: a cut front keeps the best of those that move so much,
SPREAD = 6  # one for every so many of the best of all


def fastest_offload(chain: Chain, budget_bytes: int, link: Link) -> Schedule:
    """Finds the pass that waits least of those within the budget in which nothing runs again. Raises Infeasible."""
    if plain_fits(chain, budget_bytes):
        return plain(chain.depth)
    least_bytes = least_peak(chain, candidates(chain), link)
    if least_bytes > budget_bytes:
        raise Infeasible("offloading of everything", budget_bytes, least_bytes)
    needs = Needs.of(chain, budget_bytes)
    chosen = Search(chain, needs, link).best().values
    ways = [hurried(chain, chosen, needs, out_in_turn) for out_in_turn in (True, False)]
    return min(ways, key=lambda way: predicted(way, chain, link).time_s)


@dataclass(frozen=True)
class Needs:
    """Holds the bytes that must be away in each block's forward pass, in the turn, and in each block's backward
    pass."""

    forward: tuple[int, ...]
    turn: int
    backward: tuple[int, ...]

    @classmethod
    def of(cls, chain: Chain, budget_bytes: int) -> Needs:
        moments = predicted(plain(chain.depth), chain).moments
        needs = {moment.op: max(0, moment.peak_bytes - budget_bytes) for moment in moments}
        saves, backs = ([needs[Op(kind, block)] for block in range(chain.depth)] for kind in ("save", "back"))
        return cls(tuple(saves), needs[TURN], tuple(backs))


def hurried(chain: Chain, chosen: Collection[Value], needs: Needs, out_in_turn: bool) -> Schedule:
    """Returns the fastest pass in which ``chosen`` leave. In the turn some are on their way out (``out_in_turn``), or
    back."""
    leaving = [value for value in candidates(chain) if value in chosen]
    away = [0, *accumulate(nbytes(chain, value) for value in leaving)]
    gone = [*accumulate((bisect_left(away, need) for need in needs.forward), max)]  # the first values, at each save
    stay = [*accumulate((bisect_left(away, need) for need in needs.backward), max)]  # at each back and those behind it
    turn, everything = bisect_left(away, needs.turn), len(leaving)

    def wait(first: int, done: int) -> list[Op]:
        return [Op("wait", *leaving[first - 1])] if first > done else []

    def ask(first: int, last: int) -> list[Op]:
        return [Op("prefetch", *value) for value in reversed(leaving[first:last])]

    ops: list[Op] = []
    for block, (done, first) in enumerate(zip([0, *gone], gone, strict=False)):
        ops += [*wait(first, done), Op("save", block)]
        ops += [Op("offload", *value) for value in leaving if value.block == block]
    if out_in_turn:
        asked = everything
        ops += [*wait(turn, gone[-1]), TURN, *wait(everything, turn)]
    else:
        asked = max(turn, stay[-1])
        ops += [*wait(everything, gone[-1]), *ask(asked, everything), TURN]
    for block in reversed(range(chain.depth)):
        ops += [*ask(stay[block], asked), Op("back", block)]
        asked = min(asked, stay[block])
    return tidied(chain.depth, ops)


@dataclass(frozen=True)
class Best:
    """Holds the values that should leave, the seconds of the pass, and whether no set of values is faster for sure."""

    values: list[Value]
    time_s: float
    proven: bool


@dataclass(frozen=True)
class _Front:
    """Holds states, one a row; behind it, axes of the two passes, and of operations, the last of which is the turn.
    Times count from now."""

    waited: np.ndarray
    leaving: np.ndarray
    busy: np.ndarray
    ready: np.ndarray
    chosen: np.ndarray

    def at(self, rows: np.ndarray) -> _Front:
        return _Front(self.waited[rows], self.leaving[rows], self.busy[rows], self.ready[rows], self.chosen[rows])


class Search:
    """Walks over a chain's values. Arrays have the passes as an axis, forward and backward, the latter reversed."""

    def __init__(self, chain: Chain, needs: Needs, link: Link) -> None:
        self.chain = chain
        self.values = [value for value in candidates(chain) if nbytes(chain, value)]
        self.sizes = [nbytes(chain, value) for value in self.values]
        both = [(*needs.forward, needs.turn), (*needs.backward, needs.turn)]
        self.needs = np.maximum.accumulate(both, axis=1)  # what is away stays away
        self.run_s = np.array([[stage.save_s for stage in chain.stages], [stage.back_s for stage in chain.stages]])
        self.rates = np.array([link.out_bytes_per_s, link.in_bytes_per_s])
        self.most = int((WORK / max(1, len(self.values))) ** 0.5)
        self.cut = False

    def best(self) -> Best:
        front = _Front(
            waited=np.zeros(1),
            leaving=np.zeros(1, dtype=np.int64),
            busy=np.zeros((1, 2)),
            ready=np.where(self.needs > 0, np.inf, 0.0)[None],
            chosen=np.zeros((1, len(self.values)), dtype=bool),
        )
        for block in range(self.chain.depth):
            front = self.ran(front, block)
            for number, value in enumerate(self.values):
                if value.block == block:
                    front = self.pruned(self.either(front, number), block + 1, number + 1)
        wait_out_s, wait_in_s = front.ready[:, :, -1].T
        (out_s, in_s), turn_s = front.busy.T, self.chain.turn_s
        out_in_turn = np.maximum(wait_out_s + turn_s, out_s) + in_s
        back_in_turn = out_s + np.maximum(turn_s + wait_in_s, in_s)
        time_s = front.waited + np.minimum(out_in_turn, back_in_turn) + self.run_s.sum()
        least = int(np.argmin(time_s))
        leaving = [value for value, leaves in zip(self.values, front.chosen[least], strict=True) if leaves]
        return Best(leaving, float(time_s[least]), proven=not self.cut)

    def ran(self, front: _Front, block: int) -> _Front:
        """Returns the states when block ``block`` has room, in either pass, and has run."""
        waits_s = front.ready[:, :, block]
        spent_s = waits_s + self.run_s[:, block]
        return replace(
            front,
            waited=front.waited + waits_s.sum(axis=1),
            busy=np.maximum(front.busy - spent_s, 0),
            ready=np.maximum(front.ready - spent_s[:, :, None], 0),
        )

    def either(self, front: _Front, number: int) -> _Front:
        """Returns the states in which value ``number`` stays, or leaves behind those that have left."""
        leaving = front.leaving + self.sizes[number]
        busy = front.busy + self.sizes[number] / self.rates
        enough = np.isinf(front.ready) & (self.needs <= leaving[:, None, None])
        chosen = front.chosen.copy()
        chosen[:, number] = True
        ready = np.where(enough, busy[:, :, None], front.ready)
        return _Front(
            np.concatenate([front.waited, front.waited]),
            np.concatenate([front.leaving, leaving]),
            np.concatenate([front.busy, busy]),
            np.concatenate([front.ready, ready]),
            np.concatenate([front.chosen, chosen]),
        )

    def pruned(self, front: _Front, block: int, decided: int) -> _Front:
        """Returns what is worth following, before block ``block``, with the first values ``decided``."""
        front = front.at(self.possible(front, block, decided))
        front = front.at(self.needed(front, block))
        if len(front.waited) > self.most:
            self.cut = True
            front = front.at(self.promising(front, block))
        return front

    def possible(self, front: _Front, block: int, decided: int) -> np.ndarray:
        """Tells whether enough can leave for each later operation."""
        behind = [
            sum(
                size
                for size, value in zip(self.sizes[decided:], self.values[decided:], strict=True)
                if value.block < op
            )
            for op in range(block, self.chain.depth + 1)
        ]
        most = front.leaving[:, None] + np.array(behind)
        return (most[:, None] >= self.needs[:, block:]).all(axis=(1, 2))

    def needed(self, front: _Front, block: int) -> np.ndarray:
        """Tells which rows no other makes needless; of equal ones the first."""
        times = np.concatenate([front.busy[:, :, None], front.ready[:, :, block:]], axis=2)
        with np.errstate(invalid="ignore"):  # where both never are, neither is later
            later_s = np.fmax.reduce(times[:, None] - times[None, :], axis=3, initial=0.0).sum(axis=2)
        no_less = front.leaving[:, None] >= front.leaving
        better = no_less & (front.waited[:, None] + later_s <= front.waited * (1 + 1e-12))
        return ~(better & ~np.tril(better.T)).any(axis=0)

    def promising(self, front: _Front, block: int) -> np.ndarray:
        """Returns the best of all and of each share of the bytes needed, by their bounds; of equal ones those of more
        bytes."""
        moved = np.minimum(front.leaving, self.needs.max())
        share = moved * SHARES // self.needs.max()
        order = np.lexsort((-moved, np.round(self.bound(front, block) / self.run_s.sum(), 9)))
        rank = np.argsort(order)
        within = order[np.argsort(share[order], kind="stable")]
        first = np.searchsorted(share[within], share[within])
        place = np.empty_like(rank)
        place[within] = (np.arange(len(within)) - first) * SPREAD
        return np.argsort(np.minimum(rank, place), kind="stable")[: self.most]

    def bound(self, front: _Front, block: int) -> np.ndarray:
        """Returns the seconds that a state waits at least: until enough is away for each operation, or until the link
        is free."""
        runs = np.concatenate([np.zeros((2, 1)), np.cumsum(self.run_s[:, block:], axis=1)], axis=1)
        missing = np.maximum(self.needs[:, block:] - front.leaving[:, None, None], 0)
        sent_s = front.busy[:, :, None] + missing / self.rates[:, None]
        ready = front.ready[:, :, block:]
        waits_s = np.maximum(np.where(np.isinf(ready), sent_s, ready) - runs, 0).max(axis=2).sum(axis=1)
        links_s = (sent_s - runs)[:, :, -1].sum(axis=1) - self.chain.turn_s
        return front.waited + np.maximum(waits_s, links_s)
