"""Joint plans on measured chains: faster than either parent, and faster with more memory."""

from __future__ import annotations

import pytest

from suite.chain.chain import Chain, Link, Stage
from suite.chain.plan import budget_between, planned, unplanned
from suite.chain.simulate import predicted
from techniques.offloading.pofo import solver
from techniques.offloading.pofo.technique import POFO
from techniques.offloading.shared.priorities import by_priority
from techniques.shared.persistent import persistent
from tests.runs import new_run


def test_a_mixture_beats_both_where_neither_is_free():
    own = POFO()
    (chain,) = own.profile(new_run("vit", size="nano", steps=4))
    budget, link = budget_between([chain], 0.3), own.link()
    schedule = own.solve(chain, budget, link)
    assert schedule.moves and schedule.extra_forwards
    times = [persistent(chain).seconds(budget), predicted(by_priority(chain, budget, link), chain, link).time_s]
    assert predicted(schedule, chain, link).time_s < min(times)


def test_more_memory_costs_no_time_on_measured_chains():
    own = POFO()
    chains_ = own.profile(new_run("mae", size="pico", steps=4))
    times = [planned(own, chains_, budget_between(chains_, share / 2), own.link()).time_s for share in range(3)]
    assert times[-1] == pytest.approx(unplanned(chains_).time_s) and times[0] >= max(times[1:])


def test_room_for_values_on_their_way_makes_faster_plans(monkeypatch: pytest.MonkeyPatch):
    """What is on its way out is still here, so that a plan which fills the budget does not fit."""

    def stage(run_s: float, output: int, saved: int) -> Stage:
        return Stage(run_s, run_s, 2 * run_s, output, (saved,), output, output + saved, output)

    chain, link = Chain((stage(4.0, 2, 2), stage(2.0, 3, 5), stage(1.0, 3, 4)), 2), Link(1.0, 1.0)

    def seconds() -> float:
        return predicted(POFO().solve(chain, 16, link), chain, link).time_s

    assert seconds() == 28.0
    monkeypatch.setattr(solver, "RESERVES", (0,))
    assert seconds() == 31.0
