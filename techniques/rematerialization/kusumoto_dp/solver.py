"""Plans recomputation on general graphs by dynamic programming over lower sets (Kusumoto et al., 2019, sections 3 and
4).

A lower set holds all predecessors of its nodes; its boundary is what of it has a successor outside. A rising sequence
{} = L_0 < L_1 < ... < L_k = V is a canonical strategy: the forward pass keeps the boundary of each L_i and forgets the
rest of V_i = L_i - L_{i-1}; the backward pass runs that again, V_k first. That takes T(V_i - boundary(L_i)), and while
it is at V_i it needs

    M(U_{i-1}) + 2 M(V_i) + M(succ(L_i) - L_i) + M(pred(succ(L_i)) - L_i),    U_i: the boundaries of L_1 .. L_i

opt[L, t] is the least M(U) of all sequences up to L that take t longer: a frontier for each L. The exact method has all
lower sets, the approximate one the ancestors of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, segmented
from suite.chain.simulate import predicted
from techniques.shared.persistent import (
    SLOTS,
    TICKS,
    back_bytes,
    beside_bytes,
    kept_bytes,
    persistent,
    turn_bytes,
)

Set = TypeVar("Set", bound=Hashable)
LowerSet = frozenset[int]


class Segment(NamedTuple):
    """Holds what a sequence adds: time, bytes that it keeps from then on, and bytes that it needs on top of those
    before it; ``again``: whether it runs again."""

    ticks: int
    kept_bytes: int
    needed_bytes: int
    again: bool = True


class Point(NamedTuple):
    """Holds a sequence: its time, the bytes of what it keeps, its last set and segment, and the sequence before."""

    ticks: int
    nbytes: int
    last: Hashable
    segment: Segment | None = None
    before: Point | None = None

    def points(self) -> Iterator[Point]:
        """Yields the points of the sequence, from the first on."""
        if self.before is not None:
            yield from self.before.points()
        yield self


def fastest_sequence(
    sets: Sequence[Set], segments: Callable[[Set, Set], Iterable[Segment]], kept_bytes: int, budget_bytes: int
) -> Point | None:
    """Finds the sequence from the first to the last of ``sets`` that takes least time within the budget, if there is
    one.

    Of two sets, one can only follow the other in a sequence if it does here; ``kept_bytes`` are there at the start.
    """
    frontiers: list[list[Point]] = [[Point(0, kept_bytes, sets[0])]]
    for index, later in enumerate(sets[1:], 1):
        candidates = [
            Point(point.ticks + segment.ticks, point.nbytes + segment.kept_bytes, later, segment, point)
            for earlier, frontier in zip(sets[:index], frontiers, strict=True)
            for segment in segments(earlier, later)
            for point in frontier
            if point.nbytes + segment.needed_bytes <= budget_bytes
        ]
        frontiers.append(_frontier(candidates, budget_bytes))
    return frontiers[-1][0] if frontiers[-1] else None


def least_peak(
    sets: Sequence[Set], segments: Callable[[Set, Set], Iterable[Segment]], kept_bytes: int, enough_bytes: int | None
) -> int | None:
    """Finds the least budget that a sequence from the first to the last of ``sets`` fits, of those up to
    ``enough_bytes``, or of all; None where there is none."""
    frontiers = [[(kept_bytes, 0)]]  # bytes of what is kept, the peak so far
    for index, later in enumerate(sets[1:], 1):
        candidates = {
            (held_bytes + segment.kept_bytes, max(peak, held_bytes + segment.needed_bytes))
            for earlier, frontier in zip(sets[:index], frontiers, strict=True)
            for segment in segments(earlier, later)
            for held_bytes, peak in frontier
            if enough_bytes is None or held_bytes + segment.needed_bytes <= enough_bytes
        }
        frontier = list[tuple[int, int]]()
        for held_bytes, peak in sorted(candidates):
            if not frontier or peak < frontier[-1][1]:
                frontier.append((held_bytes, peak))
        frontiers.append(frontier)
    return min((peak for _, peak in frontiers[-1]), default=None)


def _frontier(candidates: list[Point], budget_bytes: int) -> list[Point]:
    """Keeps those that keep less than all that take no longer; of more than SLOTS, one for each slot of bytes."""
    frontier: list[Point] = []
    for point in sorted(candidates, key=lambda candidate: candidate[:2]):
        if not frontier or point.nbytes < frontier[-1].nbytes:
            frontier.append(point)
    if len(frontier) <= SLOTS:
        return frontier
    slot = max(1, budget_bytes // SLOTS)
    fastest = [b for a, b in pairwise(frontier) if a.nbytes // slot != b.nbytes // slot]
    return [frontier[0], *fastest, frontier[-1]]


# general graphs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """Holds nodes 0, 1, ... in topological order: what each takes to compute, its bytes, and edges (from, to)."""

    ticks: tuple[int, ...]
    nbytes: tuple[int, ...]
    edges: frozenset[tuple[int, int]]

    @property
    def nodes(self) -> LowerSet:
        return frozenset(range(len(self.ticks)))

    def successors(self, nodes: LowerSet) -> LowerSet:
        return frozenset(v for u, v in self.edges if u in nodes)

    def predecessors(self, nodes: LowerSet) -> LowerSet:
        return frozenset(u for u, v in self.edges if v in nodes)

    def boundary(self, lower: LowerSet) -> LowerSet:
        """Returns what of a lower set has a successor outside of it."""
        return self.predecessors(self.nodes - lower) & lower

    def memory(self, nodes: LowerSet) -> int:
        return sum(self.nbytes[node] for node in nodes)

    def segment(self, earlier: LowerSet, later: LowerSet) -> Iterator[Segment]:
        """Yields what a canonical strategy adds from one lower set to a larger one; nothing where it is not larger."""
        if not earlier < later:
            return
        inside, boundary = later - earlier, self.boundary(later)
        after = self.successors(later)
        needed = 2 * self.memory(inside) + self.memory(after - later) + self.memory(self.predecessors(after) - later)
        yield Segment(sum(self.ticks[v] for v in inside - boundary), self.memory(boundary - earlier), needed)


def all_lower_sets(graph: Graph) -> list[LowerSet]:
    """Lists every lower set, the smallest first: as many as 2^n of n nodes without edges."""
    every = {frozenset[int]()}
    for node in range(len(graph.ticks)):
        before = graph.predecessors(frozenset({node}))
        every |= {lower | {node} for lower in every if before <= lower}
    return sorted(every, key=lambda lower: (len(lower), sorted(lower)))


def ancestor_sets(graph: Graph) -> list[LowerSet]:
    """Lists the nothing, each node with all its ancestors, and all nodes: n + 2 at most."""
    ancestors: list[LowerSet] = []
    for node in range(len(graph.ticks)):
        before = graph.predecessors(frozenset({node}))
        ancestors.append(frozenset({node}).union(*(ancestors[predecessor] for predecessor in before)))
    every = {frozenset[int](), graph.nodes, *ancestors}
    return sorted(every, key=lambda lower: (len(lower), sorted(lower)))


def canonical(graph: Graph, budget_bytes: int, sets: Sequence[LowerSet]) -> Point | None:
    """Finds the canonical strategy over these lower sets of least time whose peak is within the budget, if there is
    one."""
    return fastest_sequence(sets, graph.segment, 0, budget_bytes)


# chains ---------------------------------------------------------------------------------------------------------------


class Prefix(NamedTuple):
    """Holds a chain's blocks up to ``end``, the turn among them where that is the depth + 1; ``held``: whether the last
    one's graph is kept, and holds its output."""

    end: int
    held: bool = False


def prefixes(chain: Chain, budget_bytes: int) -> Point | None:
    """Finds the fastest canonical strategy of a chain: as above, but that bytes are those of the simulation."""
    sets, segments = _strategies(chain)
    return fastest_sequence(sets, segments, chain.input_bytes, budget_bytes)


def _strategies(chain: Chain) -> tuple[list[Prefix], Callable[[Prefix, Prefix], Iterator[Segment]]]:
    """Returns the lower sets of a chain, and what one adds to another.

    A block is two nodes, its graph and its output. Lower sets are prefixes, and a segment is one block whose two nodes
    are both kept, or blocks of which the last one's output is, and which run again. The last set has the turn. A prefix
    whose last graph is kept and holds its output is one of its own, as x_end then stays whatever comes behind it.
    """
    tick_s = chain.plain_s / TICKS or 1.0

    def segments(earlier: Prefix, later: Prefix) -> Iterator[Segment]:
        start, end = earlier.end, later.end
        if end > chain.depth:
            if start == chain.depth:
                yield Segment(0, 0, turn_bytes(chain, earlier.held))
            return
        if end == start + 1 and later.held == chain.stages[start].holds_output:
            yield _kept_block(chain, start, earlier.held)
        if not later.held and start < end:
            longer = sum(stage.run_s for stage in chain.stages[start:end])
            yield Segment(round(longer / tick_s), *_run_again(chain, start, end, earlier.held))

    sets = [Prefix(end, held) for end in range(chain.depth + 1) for held in (False, True)]
    return [*sets[:1], *sets[2:], Prefix(chain.depth + 1)], segments


def _kept_block(chain: Chain, block: int, held: bool) -> Segment:
    """Returns what a block that keeps its graph adds; ``held``: whether the one before keeps its input."""
    stage = chain.stages[block]
    there = chain.forward_bytes + max(stage.save_peak_bytes, stage.graph_bytes)
    return Segment(0, kept_bytes(chain, block, held), max(there, back_bytes(chain, block, held)), again=False)


def _run_again(chain: Chain, start: int, end: int, held: bool) -> tuple[int, int]:
    """Counts the bytes of the output of blocks that run again, which is kept, and those that they need, ``start``'s
    input left out."""
    sizes, beside = chain.activation_bytes, beside_bytes(chain)[end - 1]
    needed = graphs = 0
    for k in range(start, end):
        stage, own = chain.stages[k], sizes[k] if k > start else 0
        running = chain.forward_bytes + own + max(stage.run_peak_bytes, stage.output_bytes)
        there = beside + max(stage.save_peak_bytes, stage.graph_bytes)
        needed = max(needed, running, graphs + max(there, back_bytes(chain, k, held)))
        graphs += kept_bytes(chain, k, held)
        held = stage.holds_output
    return sizes[end], needed


def recomputed(chain: Chain, budget_bytes: int) -> Schedule:
    """Finds the fastest canonical strategy whose predicted peak is at most ``budget_bytes``. Raises Infeasible."""
    best = prefixes(chain, budget_bytes) if budget_bytes >= chain.outside_bytes else None
    if best is None:
        raise Infeasible("a canonical strategy", budget_bytes, _least_bytes(chain), persistent(chain).least_bytes)
    ends = [(point.last.end, point.segment) for point in best.points()]  # type: ignore[attr-defined]
    again = [(a, b) for (a, _), (b, segment) in pairwise(ends) if segment is not None and segment.again]
    return segmented(chain.depth, [(a, b) for a, b in again if b <= chain.depth])


def _least_bytes(chain: Chain) -> int:
    """Finds the least budget of a canonical strategy; equal segments are some of them."""
    lengths = range(1, chain.depth + 1)
    equal = ([(start, min(start + n, chain.depth)) for start in range(0, chain.depth, n)] for n in lengths)
    enough_bytes = min(predicted(segmented(chain.depth, ranges), chain).peak_bytes for ranges in equal)
    sets, segments = _strategies(chain)
    least_bytes = least_peak(sets, segments, chain.input_bytes, enough_bytes)
    if least_bytes is None:  # a strategy's own account of equal segments may lie above what is predicted of them
        least_bytes = least_peak(sets, segments, chain.input_bytes, None)
    assert least_bytes is not None, "keeping everything is a strategy"
    return max(least_bytes, chain.outside_bytes)
