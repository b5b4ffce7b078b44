"""Checks what a recorded step shows of recomputation by lower sets: no block runs a third time, and no canonical
strategy is faster; and the same of small graphs with branches, by the paper's own formulas."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, segmented
from suite.chain.simulate import predicted
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.kusumoto_dp.solver import Graph, all_lower_sets, ancestor_sets, canonical
from techniques.rematerialization.kusumoto_dp.technique import LowerSets
from techniques.shared.persistent import persistent
from techniques.shared.persistent_probes import (
    DEEPEST,
    beside_rivals,
    equal_segments,
    fastest_of,
    of_any_ends,
    unlike_chains,
)
from techniques.shared.recomputation_probes import order_of, scheduled_probes

GRAPHS, NODES = 8, 7

Strategy = list[frozenset[int]]


@judged(
    "changed",
    "The step's gradients are those of a plain pass, to the bit",
    "Section 3, canonical strategies",
    id="same_gradients",
)
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 3, canonical strategies",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged(
    "runs_beside_plan",
    "Every block runs as often as the schedule says",
    "Section 3, canonical strategies",
    id="runs_as_planned",
)
@judged(
    "time_over_best",
    "No canonical strategy of the chain within the same memory is faster, at any budget",
    "Section 4.1, exact algorithm",
    id="optimal",
    equals=1.0,
    tolerance=1e-9,
    note="up to 6 blocks all strategies are tried, one by one; of deeper stacks, equal segments of every length",
)
@judged(
    "plan_over_budget",
    "The strategy for any budget needs no more than it",
    "Section 4.1",
    id="plans_within_every_budget",
    at_most=1.0,
)
@judged(
    "time_over_persistent",
    "No canonical strategy is faster than the fastest persistent schedule",
    "Herrmann et al. (2019)",
    id="not_below_persistent",
    at_least=1.0,
    tolerance=1e-9,
)
@judged(
    "graphs_beside_best",
    "Over all lower sets of a graph it is the best of all canonical strategies",
    "Section 4.1, exact algorithm",
    id="optimal_on_graphs",
    note="8 random graphs of 7 nodes, every budget, all strategies tried one by one",
)
@judged(
    "approximate_below_exact",
    "Over ancestor sets alone it is no better than over all",
    "Section 4.2, approximate algorithm",
    id="approximate_is_no_better",
)
@judged(
    "peak_over_predicted",
    "The memory model predicts the peak",
    id="predicted_peak",
    equals=1.0,
    kind="counted",
    note="the paper's M leaves out the liveness analysis that is applied afterwards: real peaks are lower there",
)
def probes(recording: Recording, own: LowerSets) -> Mapping[str, float]:
    """Includes those of all that plan. The model's chains are compared, and some whose blocks are unlike, with graphs
    that hold either end (:func:`beside_rivals`). For a claim, ``most_runs`` is of a block in the step."""
    run = recording.run
    orders = [order_of(stack, recording.trace.ran) for stack in run.anatomy.stacks]
    chains = [*own.chains, *unlike_chains(), *of_any_ends(unlike_chains())]

    def solve(chain: Chain, budget_bytes: int) -> Schedule:
        return own.solve(chain, budget_bytes, None)

    beside = [beside_rivals(solve, chain, canonical_rivals(chain.depth)) for chain in chains]
    exact, approximate = _graphs()
    return scheduled_probes(recording, own) | {
        "most_runs": max(order.count(block) for order in orders for block in order),
        "time_over_best": max(time for time, _ in beside),
        "plan_over_budget": max(peak for _, peak in beside),
        "time_over_persistent": min(_over_persistent(solve, chain) for chain in chains),
        "graphs_beside_best": exact,
        "approximate_below_exact": approximate,
    }


def canonical_rivals(depth: int) -> list[Schedule]:
    """Lists every canonical strategy of a short chain, equal segments of a long one."""

    def over(start: int) -> Iterator[list[tuple[int, int]]]:
        if start == depth:
            yield []
            return
        yield from over(start + 1)
        for end in range(start + 1, depth + 1):
            yield from ([(start, end), *later] for later in over(end))

    return [segmented(depth, ranges) for ranges in over(0)] if depth <= DEEPEST else equal_segments(depth)


def _over_persistent(solve: Callable[[Chain, int], Schedule], chain: Chain) -> float:
    budgets = [prediction.peak_bytes for prediction in fastest_of(chain, canonical_rivals(chain.depth))]
    try:
        own = [predicted(solve(chain, budget), chain).time_s for budget in budgets]
    except Infeasible:
        return float("inf")
    return min(time / persistent(chain).seconds(budget) for time, budget in zip(own, budgets, strict=True))


def _graphs() -> tuple[int, int]:
    draw = random.Random(0)
    wrong = below = 0
    for _ in range(GRAPHS):
        pairs = [(u, v) for v in range(NODES) for u in range(v)]
        edges = frozenset((u, v) for u, v in pairs if draw.random() < (0.85 if v == u + 1 else 0.15))
        ticks, nbytes = (tuple(draw.randint(1, 9) for _ in range(NODES)) for _ in range(2))
        graph = Graph(ticks, nbytes, edges)
        costs = [cost(graph, strategy) for strategy in every_strategy(graph)]
        for budget in sorted({peak for _, peak in costs}):
            best = min(time for time, peak in costs if peak <= budget)
            exact = canonical(graph, budget, all_lower_sets(graph))
            approximate = canonical(graph, budget, ancestor_sets(graph))
            wrong += exact is None or exact.ticks != best
            below += approximate is not None and approximate.ticks < best
    return wrong, below


def every_strategy(graph: Graph) -> Iterator[Strategy]:
    """Yields every rising sequence of lower sets that ends with all nodes."""

    def closed(nodes: frozenset[int]) -> bool:
        return all(u in nodes for u, v in graph.edges if v in nodes)

    number = len(graph.ticks)
    subsets = [frozenset(v for v in range(number) if bits >> v & 1) for bits in range(1, 2**number)]
    lower = [nodes for nodes in subsets if closed(nodes)]

    def after(last: frozenset[int]) -> Iterator[Strategy]:
        if len(last) == number:
            yield []
        for larger in lower:
            if last < larger:
                yield from ([larger, *rest] for rest in after(larger))

    return after(frozenset())


def cost(graph: Graph, strategy: Strategy) -> tuple[int, int]:
    """Computes a strategy's longer time and its peak, by the formulas of section 3."""

    def boundary(lower: frozenset[int]) -> set[int]:
        return {u for u, v in graph.edges if u in lower and v not in lower}

    before: frozenset[int] = frozenset()
    cache: set[int] = set()
    longer = peak = 0
    for lower in strategy:
        inside = lower - before
        after = {v for u, v in graph.edges if u in lower} - lower
        theirs = {u for u, v in graph.edges if v in {v for u, v in graph.edges if u in lower}} - lower
        u = [*cache, *inside, *inside, *after, *theirs]
        peak = max(peak, sum(graph.nbytes[v] for v in u))
        longer += sum(graph.ticks[v] for v in inside - boundary(lower))
        cache |= boundary(lower)
        before = lower
    return longer, peak
