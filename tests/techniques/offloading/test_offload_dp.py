"""Optimal offloading: as fast as the fastest set, a pass by hand, and what it needs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain, Link, Stage
from suite.chain.plan import Infeasible
from suite.chain.schedule import ScheduleError, Value, plain
from suite.chain.simulate import predicted
from techniques.offloading.offload_dp.solver import Needs, Search, fastest_offload, hurried
from techniques.offloading.offload_dp.technique import OffloadDP
from techniques.offloading.shared.offloaded import candidates, least_peak, nbytes
from techniques.offloading.shared.offloaded_probes import even_link
from tests.chain.chains import chains
from tests.runs import new_run


@st.composite
def cases(draw: st.DrawFn, most: int) -> tuple[Chain, int, Link]:
    """Chains, budgets that something must leave for, and links."""
    chain = draw(chains(most=most, any_ends=True))
    gradient = chain.activation_bytes[-1] + max(0, chain.backward_bytes - chain.forward_bytes)
    chain = replace(chain, turn_s=draw(st.integers(1, 20)), turn_peak_bytes=max(gradient, chain.turn_peak_bytes))
    link = Link(draw(st.sampled_from([0.5, 2.0, 5.0, 20.0])), draw(st.sampled_from([0.5, 3.0, 20.0])))
    low, high = least_peak(chain, candidates(chain), link), predicted(plain(chain.depth), chain).peak_bytes
    assume(low < high)
    return chain, draw(st.integers(low, high - 1)), link


@settings(max_examples=15, deadline=None)
@given(cases(most=3))
def test_it_is_as_fast_as_the_fastest_set_and_knows_its_own_time(case: tuple[Chain, int, Link]):
    same_as_every_set(*case)


def test_so_it_is_of_ten_blocks_that_save_one_value():
    sizes, seconds = (7, 13, 5, 20, 11, 3, 17, 8, 19, 6), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
    stages = [Stage(s, s, 11 - s, 2, (n,), 2, 2 + n, 4, holds_input=False) for n, s in zip(sizes, seconds, strict=True)]
    chain = Chain(tuple(stages), 2, turn_s=6.0, turn_peak_bytes=9)
    same_as_every_set(chain, 90, Link(1.5, 1.0))


def same_as_every_set(chain: Chain, budget: int, link: Link) -> None:
    needs = Needs.of(chain, budget)
    best = Search(chain, needs, link).best()
    values = [value for value in candidates(chain) if nbytes(chain, value)]
    least = math.inf
    for bits in range(2 ** len(values)):
        chosen = [value for number, value in enumerate(values) if bits >> number & 1]
        if sum(nbytes(chain, value) for value in chosen) < max(*needs.forward, needs.turn, *needs.backward):
            continue
        for out_in_turn in (True, False):
            try:
                seen = predicted(hurried(chain, chosen, needs, out_in_turn), chain, link)
            except ScheduleError:  # it would come back before it is needed most, or wait for what is not there yet
                continue
            if seen.peak_bytes <= budget:
                least = min(least, seen.time_s)
    own = predicted(fastest_offload(chain, budget, link), chain, link)
    assert best.proven and own.peak_bytes <= budget
    assert own.time_s == pytest.approx(least) == pytest.approx(best.time_s)


def test_a_pass_of_two_blocks_by_hand():
    # F0 0-2, s0 leaves 2-6; F1 needs 10 bytes away, 6-8; the turn 8-9; s0 comes back from B1's end, 12-16, B0 16-20
    stage = Stage(2, 2, 4, 0, (20,), 0, 20, 0, holds_input=False)
    chain = Chain((stage, stage), 0, turn_s=1.0)
    schedule = fastest_offload(chain, 30, Link(5, 5))
    assert str(schedule) == "F0 -x0 >s0.0 ~s0.0 F1 -x1 -x2 | B1 <s0.0 B0"
    assert predicted(schedule, chain, Link(5, 5)).time_s == 6 + 2 + 1 + 4 + 4 + 4


def test_a_budget_below_the_least_says_the_least():
    (chain,) = OffloadDP().profile(new_run("gpt", size="pico", steps=4))
    link = OffloadDP().link()
    least = least_peak(chain, candidates(chain), link)
    assert predicted(fastest_offload(chain, least, link), chain, link).peak_bytes <= least
    with pytest.raises(Infeasible, match=f"its least is {least / 1e6:.6g} MB") as error:
        fastest_offload(chain, least - 1, link)
    assert error.value.least_bytes == least


def test_without_a_link_it_says_what_it_wants():
    (chain,) = OffloadDP().profile(new_run("gpt", size="pico", steps=4))
    with pytest.raises(ValueError, match="needs a link"):
        OffloadDP().solve(chain, 1, None)


def test_a_deep_chain_is_cut_and_fits():
    stage = Stage(3, 3, 6, 10, tuple(range(5, 17)), 10, 150, 20)
    chain = Chain((stage,) * 12, 10, turn_s=2.0, turn_peak_bytes=20)
    link, budget = even_link(chain), predicted(plain(12), chain).peak_bytes // 2
    assert not Search(chain, Needs.of(chain, budget), link).best().proven
    seen = predicted(fastest_offload(chain, budget, link), chain, link)
    assert seen.peak_bytes <= budget and seen.compute_s == pytest.approx(chain.plain_s)


def test_needs_are_what_a_plain_pass_has_too_much():
    chain = Chain((Stage(1, 1, 1, 10, (50,), 10, 60, 20), Stage(1, 1, 1, 10, (30,), 10, 40, 20)), 10)
    # forward 10 + 60, then 20 + 50 + 40; the turn 100; back 10 + 10 + 50 + 10 + 30 + 20, then 80
    assert Needs.of(chain, 80) == Needs((0, 30), 30, (10, 50))
    assert Needs.of(chain, 10**6) == Needs((0, 0), 0, (0, 0))
    assert Value(0, 0) in candidates(chain)
