"""AutoSwap: scores by hand, as few values as the order allows, and no number of a run changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from suite.chain.chain import Chain, Link, Stage
from suite.chain.plan import Infeasible
from suite.chain.schedule import Value, plain
from suite.chain.simulate import predicted
from techniques.offloading.autoswap.technique import AutoSwap
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.priorities import SCORES, Trace, first_that_fit, ranked
from tests.chain.chains import chains
from tests.runs import new_run

LINK = Link(5.0, 5.0)
TWO = Chain((Stage(1, 1, 2, 10, (50,), 12, 65, 20), Stage(2, 3, 4, 10, (30,), 12, 45, 20)), 10, turn_s=1.0)


def test_absences_and_scores_by_hand():
    trace = Trace.of(TWO)  # F0 0-1, F1 1-4, turn 4-5, B1 5-9, B0 9-11
    assert [trace.absence_s(Value(block, 0)) for block in (0, 1)] == [8, 1]
    assert ranked(TWO, "doa")[:2] == [Value(0), Value(0, 0)]
    assert ranked(TWO, "aoa") == [Value(0, 0), Value(0), Value(1, 0), Value(1)]
    assert trace.weighted(Value(1, 0), trace.load) == trace.load[2]  # during the turn, a second


@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=25)
@given(chains())
def test_plans_fit_and_need_all_that_they_move(score, chain: Chain):
    order = ranked(chain, score)
    assert set(order) == set(candidates(chain)) and len(order) == len(set(order))
    highest = predicted(plain(chain.depth), chain).peak_bytes
    for budget in range(least_peak(chain, candidates(chain), LINK), highest, 7):
        count = first_that_fit(chain, order, budget, LINK)
        assert least_peak(chain, order[:count], LINK) <= budget
        assert count == 1 or least_peak(chain, order[: count - 1], LINK) > budget
        assert predicted(AutoSwap(score=score).solve(chain, budget, LINK), chain, LINK).peak_bytes <= budget
    with pytest.raises(Infeasible):
        AutoSwap(score=score).solve(chain, 0, LINK)


def test_the_best_score_is_no_slower_than_any():
    (chain,) = AutoSwap().profile(new_run("bert", size="nano", steps=4))
    link, budget = AutoSwap().link(), predicted(plain(chain.depth), chain).peak_bytes * 2 // 3
    times = [
        predicted(AutoSwap(score=each).solve(chain, budget, link), chain, link).time_s for each in (*SCORES, "best")
    ]
    assert times[-1] == min(times)
