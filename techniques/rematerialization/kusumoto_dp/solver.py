"""Recomputation on general graphs by dynamic programming over lower sets (Kusumoto et al., 2019, sections 3 and 4).

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
from techniques.shared.persistent import SLOTS, TICKS, back_bytes, beside_bytes, kept_bytes, turn_bytes

Set = TypeVar("Set", bound=Hashable)
LowerSet = frozenset[int]


class Segment(NamedTuple):
    """What a sequence adds: time, bytes that it keeps from then on, and bytes that it needs on top of those before it;
    ``again``: whether it runs again."""

    ticks: int
    kept_bytes: int
    needed_bytes: int
    again: bool = True


class Point(NamedTuple):
    """A sequence: its time, the bytes of what it keeps, its last set and segment, and the sequence before."""

    ticks: int
    nbytes: int
    last: Hashable
    segment: Segment | None = None
    before: Point | None = None

    def points(self) -> Iterator[Point]:
        """From the first on."""
        if self.before is not None:
            yield from self.before.points()
        yield self


def fastest_sequence(
    sets: Sequence[Set], segments: Callable[[Set, Set], Iterable[Segment]], kept_bytes: int, budget_bytes: int
) -> Point | None:
    """The sequence from the first to the last of ``sets`` that takes least time within the budget, if there is one.

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


def _frontier(candidates: list[Point], budget_bytes: int) -> list[Point]:
    """Those that keep less than all that take no longer; of more than SLOTS, one for each slot of bytes."""
    frontier: list[Point] = []
    for point in sorted(candidates, key=lambda each: each[:2]):
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
    """Nodes 0, 1, ... in topological order: what each takes to compute, its bytes, and edges (from, to)."""

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
        """What of a lower set has a successor outside of it."""
        return self.predecessors(self.nodes - lower) & lower

    def memory(self, nodes: LowerSet) -> int:
        return sum(self.nbytes[node] for node in nodes)

    def segment(self, earlier: LowerSet, later: LowerSet) -> Iterator[Segment]:
        """What a canonical strategy adds from one lower set to a larger one; nothing where it is not larger."""
        if not earlier < later:
            return
        inside, boundary = later - earlier, self.boundary(later)
        after = self.successors(later)
        needed = 2 * self.memory(inside) + self.memory(after - later) + self.memory(self.predecessors(after) - later)
        yield Segment(sum(self.ticks[v] for v in inside - boundary), self.memory(boundary - earlier), needed)


def all_lower_sets(graph: Graph) -> list[LowerSet]:
    """Every one, the smallest first: as many as 2^n of n nodes without edges."""
    every = {frozenset[int]()}
    for node in range(len(graph.ticks)):
        before = graph.predecessors(frozenset({node}))
        every |= {lower | {node} for lower in every if before <= lower}
    return sorted(every, key=lambda lower: (len(lower), sorted(lower)))


def ancestor_sets(graph: Graph) -> list[LowerSet]:
    """The nothing, each node with all its ancestors, and all nodes: n + 2 at most."""
    ancestors: list[LowerSet] = []
    for node in range(len(graph.ticks)):
        before = graph.predecessors(frozenset({node}))
        ancestors.append(frozenset({node}).union(*(ancestors[each] for each in before)))
    every = {frozenset[int](), graph.nodes, *ancestors}
    return sorted(every, key=lambda lower: (len(lower), sorted(lower)))


def canonical(graph: Graph, budget_bytes: int, sets: Sequence[LowerSet]) -> Point | None:
    """The canonical strategy over these lower sets of least time whose peak is within the budget, if there is one."""
    return fastest_sequence(sets, graph.segment, 0, budget_bytes)


# chains ---------------------------------------------------------------------------------------------------------------


def prefixes(chain: Chain, budget_bytes: int) -> Point | None:
    """The fastest canonical strategy of a chain: as above, but that bytes are those of the simulation.

    A block is two nodes, its graph and its output. Lower sets are prefixes, and a segment is one block whose two nodes
    are both kept, or blocks of which the last one's output is, and which run again. The last set has the turn.
    """
    tick_s = chain.plain_s / TICKS or 1.0
    beside, sizes, stages = beside_bytes(chain), chain.activation_bytes, chain.stages
    there = [max(stage.save_peak_bytes, stage.graph_bytes) for stage in stages]

    def segments(start: int, end: int) -> Iterator[Segment]:
        if start == chain.depth:
            yield Segment(0, 0, turn_bytes(chain))
            return
        if end > chain.depth:
            return
        if end == start + 1:
            needed = max(chain.forward_bytes + there[start], back_bytes(chain, start))
            yield Segment(0, kept_bytes(chain, start), needed, again=False)
        needed = graphs = 0
        for k in range(start, end):
            held = sizes[k] if k > start else 0
            running = chain.forward_bytes + held + max(stages[k].run_peak_bytes, stages[k].output_bytes)
            needed = max(needed, running, graphs + max(beside[end - 1] + there[k], back_bytes(chain, k)))
            graphs += kept_bytes(chain, k)
        longer = sum(stages[k].run_s for k in range(start, end))
        yield Segment(round(longer / tick_s), sizes[end], needed)

    return fastest_sequence(range(chain.depth + 2), segments, chain.input_bytes, budget_bytes)


def recomputed(chain: Chain, budget_bytes: int) -> Schedule:
    """The fastest canonical strategy whose predicted peak is at most ``budget_bytes``. Raises Infeasible."""
    best = prefixes(chain, budget_bytes) if budget_bytes >= chain.outside_bytes else None
    if best is None:
        raise Infeasible("a canonical strategy", budget_bytes, _least_bytes(chain))
    steps = [(a.last, b.last) for a, b in pairwise(best.points()) if b.segment is not None and b.segment.again]
    return segmented(chain.depth, [(a, b) for a, b in steps if b <= chain.depth])  # type: ignore[misc, operator]


def _least_bytes(chain: Chain) -> int:
    """Of equal segments, each of which is a canonical strategy: as small as this one knows."""
    lengths = range(1, chain.depth + 1)
    equal = ([(start, min(start + n, chain.depth)) for start in range(0, chain.depth, n)] for n in lengths)
    return min(predicted(segmented(chain.depth, ranges), chain).peak_bytes for ranges in equal)
