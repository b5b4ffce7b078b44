"""Joint plans: within every budget, no slower than either parent, and no number of a run changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible, budget_between, planned, unplanned
from suite.chain.schedule import plain
from suite.chain.simulate import predicted
from techniques.offloading.pofo.solver import cheapest, jointly
from techniques.offloading.pofo.technique import POFO
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.priorities import by_priority
from techniques.shared.persistent import persistent
from tests.chain.chains import chains
from tests.runs import new_run

LINKS = [Link(rate, rate) for rate in (0.5, 5.0, 50.0)]


@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=15)
@given(chains())
def test_plans_fit_and_are_no_slower_than_either_parent(link: Link, chain: Chain):
    table, alone = persistent(chain), least_peak(chain, candidates(chain), link)
    highest = predicted(plain(chain.depth), chain).peak_bytes
    for budget in range(min(table.least_bytes, alone), highest + 1, 9):
        seen = predicted(jointly(chain, budget, link), chain, link)
        assert seen.peak_bytes <= budget
        if budget >= table.least_bytes:
            assert seen.time_s <= table.seconds(budget) + 1e-9
        if budget >= alone:
            assert seen.time_s <= predicted(by_priority(chain, budget, link), chain, link).time_s + 1e-9
    with pytest.raises(Infeasible):
        jointly(chain, 0, link)


def test_a_mixture_beats_both_where_neither_is_free():
    own = POFO()
    (chain,) = own.profile(new_run("vit", size="nano", steps=4))
    budget, link = budget_between([chain], 0.3), own.link()
    schedule = own.solve(chain, budget, link)
    assert schedule.moves and schedule.extra_forwards
    times = [persistent(chain).seconds(budget), predicted(by_priority(chain, budget, link), chain, link).time_s]
    assert predicted(schedule, chain, link).time_s < min(times)


def test_a_dear_link_leaves_the_front_to_recomputation():
    (chain,) = POFO().profile(new_run("gpt", size="nano", steps=4))
    table, budget = persistent(chain), budget_between([chain], 0.5)
    cheap, dear = (cheapest(table, budget, Link(rate, rate), 1.0) for rate in (1e15, 1e3))
    assert any(segment.saved for segment in cheap) and not any(segment.saved for segment in dear)


def test_more_memory_costs_no_time_on_measured_chains():
    own = POFO()
    chains_ = own.profile(new_run("mae", size="nano", steps=4))
    times = [planned(own, chains_, budget_between(chains_, share / 4), own.link()).time_s for share in range(5)]
    assert times[-1] == pytest.approx(unplanned(chains_).time_s) and times[0] >= max(times[1:])
