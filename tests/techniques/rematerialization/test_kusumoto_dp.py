"""Lower sets: chains and graphs equal to all strategies tried one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.rematerialization.kusumoto_dp import solver
from techniques.rematerialization.kusumoto_dp.probes import canonical_rivals, cost, every_strategy
from techniques.rematerialization.kusumoto_dp.solver import (
    Graph,
    all_lower_sets,
    ancestor_sets,
    canonical,
    recomputed,
)
from techniques.shared.persistent_probes import (
    equal_chain,
    fastest_of,
    of_any_ends,
    unlike_chains,
)


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> Graph:
    number = draw(st.integers(1, most))
    sizes = st.lists(st.integers(1, 9), min_size=number, max_size=number).map(tuple)
    rare = st.integers(0, 5).map(lambda drawn: drawn == 5)
    edges = frozenset((u, v) for v in range(number) for u in range(v) if draw(rare) != (v == u + 1))
    return Graph(draw(sizes), draw(sizes), edges)


@settings(max_examples=40)
@given(graphs())
def test_no_strategy_of_a_graph_is_faster_and_ancestors_are_no_better(graph: Graph):
    costs = [cost(graph, strategy) for strategy in every_strategy(graph)]
    for budget in sorted({peak for _, peak in costs}):
        best = canonical(graph, budget, all_lower_sets(graph))
        assert best is not None
        assert best.ticks == min(time for time, peak in costs if peak <= budget)
        strategy = [point.last for point in best.points()][1:]
        assert cost(graph, strategy)[0] == best.ticks and cost(graph, strategy)[1] <= budget
        approximate = canonical(graph, budget, ancestor_sets(graph))
        assert approximate is None or approximate.ticks >= best.ticks
    assert canonical(graph, min(peak for _, peak in costs) - 1, all_lower_sets(graph)) is None


@given(graphs(), st.integers(0, 63))
def test_lower_sets_are_closed_and_all(graph: Graph, bits: int):
    nodes = frozenset(v for v in graph.nodes if bits >> v & 1)
    closed = all(u in nodes for u, v in graph.edges if v in nodes)
    assert (nodes in all_lower_sets(graph)) == closed
    assert set(ancestor_sets(graph)) <= set(all_lower_sets(graph))
    assert len(ancestor_sets(graph)) <= len(graph.nodes) + 2


def test_no_budget_that_a_strategy_fits_is_refused_and_each_refusal_names_the_least():
    """Graphs that hold either end, both or none. The budgets are those at which another strategy begins to be the
    fastest."""
    for chain in of_any_ends(unlike_chains(30, depth=4)):
        best = fastest_of(chain, canonical_rivals(4))
        own = [predicted(recomputed(chain, each.peak_bytes), chain) for each in best]  # raises where it refuses
        assert [each.time_s for each in own] == pytest.approx([each.time_s for each in best], rel=1e-9)
        with pytest.raises(Infeasible) as error:
            recomputed(chain, best[0].peak_bytes - 1)
        assert error.value.least_bytes == best[0].peak_bytes


def test_more_points_than_slots_keep_the_budget(monkeypatch):
    chain = equal_chain(24)
    exact = [predicted(recomputed(chain, budget), chain).time_s for budget in range(40, 120, 16)]
    monkeypatch.setattr(solver, "SLOTS", 3)
    for budget, time_s in zip(range(40, 120, 16), exact, strict=True):
        own = predicted(recomputed(chain, budget), chain)
        assert own.peak_bytes <= budget and own.time_s >= time_s
