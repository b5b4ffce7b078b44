"""Capuchin: hidden transfers first, plans within every budget, and no number of a run changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Value, every_input, plain
from suite.chain.simulate import predicted
from techniques.offloading.capuchin.technique import Capuchin, bytes_saved_per_second, free_times, hidden, mixed
from techniques.offloading.shared.offloaded import candidates, leaving
from techniques.offloading.shared.offloaded_probes import even_link, times
from tests.chain.chains import chains
from tests.runs import new_run


@settings(max_examples=30)
@given(chains())
def test_hidden_transfers_take_no_time(chain: Chain):
    for rate in (0.3, 3.0):
        link = times(even_link(chain), rate)
        seen = predicted(leaving(chain, hidden(chain, link)), chain, link)
        assert seen.stalled_s <= 1e-6 * chain.plain_s


@settings(max_examples=20)
@given(chains())
def test_plans_fit(chain: Chain):
    link = even_link(chain)
    highest = predicted(plain(chain.depth), chain).peak_bytes
    for budget in range(predicted(every_input(chain.depth), chain).peak_bytes, highest + 1, 11):
        assert predicted(Capuchin().solve(chain, budget, link), chain, link).peak_bytes <= budget
    with pytest.raises(Infeasible):
        Capuchin().solve(chain, 0, link)


@given(chains())
def test_mixtures_end_at_both_parents(chain: Chain):
    assert mixed(chain, candidates(chain), (), 1, 1) == leaving(chain, candidates(chain), 1, 1)
    assert mixed(chain, (), range(chain.depth), 1, 1) == every_input(chain.depth)


def test_free_time_and_bytes_per_second_by_hand():
    (chain,) = Capuchin().profile(new_run("gpt", size="pico", steps=4))
    link = Link(1e9, 2e9)
    size, stage = chain.stages[0].saved_bytes[0], chain.stages[0]
    between_s = chain.plain_s - stage.save_s - stage.back_s
    assert free_times(chain, link)[Value(0, 0)] == pytest.approx(between_s - size / 1e9 - size / 2e9)
    assert bytes_saved_per_second(chain, 0) == sum(stage.saved_bytes) / stage.run_s
