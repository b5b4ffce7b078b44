"""Rematerialisation by score against every schedule, its formula in numbers, and its rule of what may be dropped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain, Stage
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, least, unplanned
from suite.chain.simulate import predicted
from techniques.rematerialization.remat_heuristic.solver import (
    Kept,
    droppable,
    dropping,
    lifetimes_s,
    recomputing,
    score,
)
from tests.chain.chains import chains

THREE = Chain(
    tuple(Stage(s, s, 2 * s, 10, (graph,), 10, 10 + graph, 10) for s, graph in ((1.0, 60), (2.0, 40), (4.0, 20))),
    10,
    turn_s=3.0,
)


@settings(max_examples=30, deadline=None)
@given(chains(most=4, any_ends=True), st.floats(0, 1.1))
def test_a_plan_fits_and_costs_between_the_optimum_and_dropping_everything(chain: Chain, of_the_way: float) -> None:
    low, high = least([chain]).peak_bytes, unplanned([chain]).peak_bytes
    budget_bytes = low + int(of_the_way * (high - low))
    try:
        schedule = dropping(chain, budget_bytes)
    except Infeasible as error:
        budget_bytes = error.least_bytes
        schedule = dropping(chain, budget_bytes)
    cost = predicted(schedule, chain)
    assert cost.peak_bytes <= budget_bytes
    assert cost.time_s >= fastest(chain, budget_bytes) * (1 - 1e-12)
    assert schedule.extra_forwards <= chain.depth + chain.depth // 2
    assert max(schedule.runs(block) for block in range(chain.depth)) <= 3


def test_scores_are_bytes_times_lifetime_over_recompute_seconds() -> None:
    """F0 F1 F2 end at 1, 3, 7 s; the turn at 10 s; B2 begins at 10 s, B1 at 18 s, B0 at 22 s."""
    lives_s = lifetimes_s(THREE)
    graphs = [score(THREE, Kept("graph", i), lives_s[Kept("graph", i)]) for i in range(3)]
    assert graphs == [60 * 21 / 1, 40 * 15 / 2, 20 * 3 / 4]
    assert score(THREE, Kept("input", 2), lives_s[Kept("input", 2)]) == 10 * 7 / 2


def test_the_best_score_goes_first_and_the_rest_stays() -> None:
    plain_bytes = unplanned([THREE]).peak_bytes
    schedule = dropping(THREE, plain_bytes - 1)
    assert [schedule.runs(block) for block in range(3)] == [2, 1, 1]
    assert dropping(THREE, plain_bytes).extra_forwards == 0


def test_what_is_computed_again_finds_what_it_is_computed_of() -> None:
    graphs = {Kept("graph", i) for i in range(5)}
    assert set(droppable(5, set())) == graphs
    dropped = graphs | {Kept("input", 2)}
    assert set(droppable(5, dropped)) == {Kept("input", 4)}
    schedule = recomputing(5, dropped | {Kept("input", 4)})
    assert [schedule.runs(block) for block in range(5)] == [2, 3, 2, 3, 2]


def test_the_least_that_scores_can_do_is_named() -> None:
    with pytest.raises(Infeasible, match="what scores can drop does not fit") as error:
        dropping(THREE, 20)
    assert predicted(dropping(THREE, error.value.least_bytes), THREE).peak_bytes == error.value.least_bytes
