"""Runs a genetic algorithm over allocations of memory, each of which a swap planner turns into a plan (SwapAdvisor).

    gene      of each value: whether it shares the space that is swapped, or has a place of its own and stays
    planner   where an operation needs room, the shared value with the furthest next use makes it (Belady): it leaves as
              soon as its block has run, and the operation waits for it; it comes back as soon as it fits from then on
    fitness   seconds of that plan; above those of any that fits, and the more the further it is over the budget

On a chain the value with the furthest next use is the one that was saved first. So what is away during an operation is
a first part of the shared values in the order of saving, and the number of them at each operation is the whole plan.
Its time follows without a schedule, in one walk over the operations, and is the simulation's up to rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, backs, plain, tidied
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, linked, nbytes

Genes = np.ndarray  # of bool: a value each, in the order of saving


@dataclass(frozen=True)
class Evolution:
    """Holds the fittest genes, and the best fitness of the first generation and of each later one, in seconds."""

    genes: Genes
    best_s: tuple[float, ...]


def swapped(
    chain: Chain, budget_bytes: int, link: Link | None, seed: int = 0, generations: int = 40, population: int = 32
) -> Schedule:
    """Returns the plan of the fittest allocation. Raises Infeasible."""
    if predicted(plain(chain.depth), chain).peak_bytes <= budget_bytes:
        return plain(chain.depth)
    planner = Planner(chain, budget_bytes, linked(link))
    if budget_bytes < planner.least_bytes:
        raise Infeasible("any swapping", budget_bytes, planner.least_bytes)
    return planner.schedule(evolved(planner, seed, generations, population).genes)


def evolved(planner: Planner, seed: int, generations: int, population: int) -> Evolution:
    """Runs the genetic algorithm. The fittest of parents and children live on, so that the best is never lost."""
    draw = np.random.default_rng(seed)
    count = len(planner.values)
    known: dict[bytes, float] = {}

    def fitness_of(people: np.ndarray) -> np.ndarray:
        new = {genes.tobytes(): genes for genes in people}
        known.update((key, planner.fitness(genes)) for key, genes in new.items() if key not in known)
        return np.array([known[genes.tobytes()] for genes in people])

    people = first_generation(planner, draw, population)
    fitness = fitness_of(people)
    best_s = [float(fitness.min())]
    for _ in range(generations):
        parents = people[draw.choice(population, (population, 2), p=chances(fitness))]
        cuts = draw.integers(0, count + 1, (population, 1))
        children = np.where(np.arange(count) < cuts, parents[:, 0], parents[:, 1])
        children ^= draw.random(children.shape) < 1 / count
        everyone = np.concatenate([people, children])
        fitness = np.concatenate([fitness, fitness_of(children)])
        fittest = np.argsort(fitness, kind="stable")[:population]
        people, fitness = everyone[fittest], fitness[fittest]
        best_s.append(float(fitness.min()))
    return Evolution(people[np.argmin(fitness)], tuple(best_s))


def first_generation(planner: Planner, draw: np.random.Generator, population: int) -> np.ndarray:
    """Draws genes in which everything is shared, or the blocks' inputs alone; the others at random, each with a share
    of its own."""
    people = draw.random((population, len(planner.values))) < draw.random((population, 1))
    people[0] = True
    people[1] = [value.item is None for value in planner.values]
    return people


def chances(fitness: np.ndarray) -> np.ndarray:
    """Returns the chances of each to be a parent: the softmax of its fitness, in standard deviations."""
    weights = np.exp((fitness.min() - fitness) / (fitness.std() or 1.0))
    return weights / weights.sum()


class Planner:
    """Plans swaps for a chain within a budget; operations are those of a plain pass, numbered as they run.

    Attributes:
        values: all that may leave, in the order of saving.
        ops: what computes, and the turn.
        least_bytes: the least budget that can be met: with all values shared.
    """

    def __init__(self, chain: Chain, budget_bytes: int, link: Link) -> None:
        depth, stages = chain.depth, chain.stages
        self.depth, self.budget_bytes, self.link = depth, budget_bytes, link
        self.values = candidates(chain)
        self._blocks = np.array([value.block for value in self.values], dtype=np.int64)
        self._nbytes = np.array([nbytes(chain, value) for value in self.values], dtype=np.int64)
        self.ops = [*(Op("save", block) for block in range(depth)), TURN, *backs(range(depth))]
        self._seconds = [*(s.save_s for s in stages), chain.turn_s, *(s.back_s for s in reversed(stages))]
        peaks = _peaks(chain)
        self._need_bytes = peaks - budget_bytes  # to be away during each operation
        self._near = np.array([*range(depth), depth, *reversed(range(depth))])  # what is of this block or later is not
        all_sums, all_ends = self._shared(np.ones(len(self.values), dtype=bool))
        self.least_bytes = max(chain.outside_bytes, int(np.max(peaks - all_sums[all_ends[self._near]])))

    @cached_property
    def worst_s(self) -> float:
        """Returns a time longer than any plan: nothing goes on beside anything else."""
        per_byte_s = 1 / self.link.out_bytes_per_s + 1 / self.link.in_bytes_per_s
        return sum(self._seconds) + int(self._nbytes.sum()) * per_byte_s

    def fitness(self, genes: Genes) -> float:
        """Returns the seconds: the fewer, the fitter."""
        sums, ends = self._shared(genes)
        excess_bytes = int(np.max(self._need_bytes - sums[ends[self._near]]))
        if excess_bytes > 0:
            return self.worst_s * (1 + excess_bytes / self.budget_bytes)
        return self._time_s(self._away(sums), sums, ends)

    def schedule(self, genes: Genes) -> Schedule:
        """Returns the plan of an allocation that fits."""
        sums, ends = self._shared(genes)
        shared = [self.values[n] for n in np.flatnonzero(genes)]
        away = self._away(sums)
        leaving, waited, back = int(away.max()), 0, int(away.max())
        ops: list[Op] = []
        for op, gone, kept_out in zip(self.ops, away.tolist(), _later(away).tolist(), strict=True):
            ops += [Op("wait", *value) for value in shared[waited:gone]]
            waited = max(waited, gone)
            ops += [Op("prefetch", *value) for value in reversed(shared[kept_out:back])]
            back = kept_out
            ops.append(op)
            if op.kind == "save":
                ops += [Op("offload", *value) for value in shared[ends[op.block] : min(ends[op.block + 1], leaving)]]
        return tidied(self.depth, ops)

    def _shared(self, genes: Genes) -> tuple[np.ndarray, np.ndarray]:
        """Counts the bytes of the first 0, 1, 2, ... shared values, and how many of these are of blocks before 0, 1, 2,
        ..."""
        sums = np.concatenate([[0], np.cumsum(self._nbytes[genes])])
        return sums, np.searchsorted(self._blocks[genes], np.arange(self.depth + 1))

    def _away(self, sums: np.ndarray) -> np.ndarray:
        """Returns how many shared values are away during each operation: as few as make room, the furthest next use
        first."""
        return np.searchsorted(sums, self._need_bytes)

    def _time_s(self, away: np.ndarray, sums: np.ndarray, ends: np.ndarray) -> float:
        """Returns the seconds of the pass, as the simulation has it. Transfers queue: one moment a block says when each
        ends."""
        out_s, in_s = ((sums / rate).tolist() for rate in (self.link.out_bytes_per_s, self.link.in_bytes_per_s))
        gone_at, later_at, first = away.tolist(), _later(away).tolist(), ends.tolist()
        asked = leaving = max(gone_at)
        now = out_free_s = in_free_s = 0.0
        out_begins_s, arrives_s = [0.0] * self.depth, [0.0] * self.depth  # of a block's values
        absent = bisect_left(first, leaving) - 1  # the last block of which something leaves and was not asked for
        for op, seconds, gone, later in zip(self.ops, self._seconds, gone_at, later_at, strict=True):
            if gone:
                now = max(now, out_begins_s[bisect_right(first, gone - 1) - 1] + out_s[gone])
            if later < asked:
                in_begins_s = max(now, in_free_s) + in_s[asked]
                in_free_s, asked = in_begins_s - in_s[later], later
                while absent >= 0 and first[absent] >= later:
                    arrives_s[absent] = in_begins_s - in_s[first[absent]]
                    absent -= 1
            if op.kind == "back":
                now = max(now, arrives_s[op.block])
            now += seconds
            if op.kind == "save" and first[op.block] < leaving:
                out_begins_s[op.block] = max(now, out_free_s) - out_s[first[op.block]]
                out_free_s = out_begins_s[op.block] + out_s[min(first[op.block + 1], leaving)]
        return max(now, out_free_s)


def _peaks(chain: Chain) -> np.ndarray:
    """Returns the most bytes alive in each operation of a plain pass and in the drops behind it."""
    peaks: list[int] = []
    for moment in predicted(plain(chain.depth), chain).moments:
        if moment.op.kind == "drop":
            peaks[-1] = max(peaks[-1], moment.peak_bytes)
        else:
            peaks.append(moment.peak_bytes)
    return np.array(peaks)


def _later(away: np.ndarray) -> np.ndarray:
    """Returns the most that are away in each operation or a later one: no more than these may be kept out."""
    return np.maximum.accumulate(away[::-1])[::-1]
