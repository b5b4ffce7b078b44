"""Revolve: the closed form against the recurrence, every schedule against all with one tape, memory to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from suite.chain.chain import Chain, Stage
from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.rematerialization.revolve.technique import revolved
from techniques.rematerialization.rotor.technique import fastest
from techniques.rematerialization.shared.divided import advances, binomial, divided
from techniques.shared.persistent_probes import (
    binomial_extra,
    equal_chain,
    equal_segments,
    every_persistent,
    kept_at_turn,
    most_graphs,
)
from tests.chain.chains import chains


def test_the_closed_form_is_the_recurrence():
    assert all(advances(n, s) == binomial_extra(n, s) for n in range(1, 60) for s in range(1, 12))


@pytest.mark.parametrize(("steps", "snapshots", "forwards"), [(12, 3, 33), (24, 4, 75), (48, 5, 164), (96, 6, 360)])
def test_forward_passes_of_the_literature(steps, snapshots, forwards):
    assert steps + divided(steps, snapshots, binomial).extra_forwards == forwards


@pytest.mark.parametrize("depth", range(2, 20))
def test_every_schedule_runs_as_often_as_the_formula_says(depth):
    for snapshots in range(1, depth + 2):
        schedule = divided(depth, snapshots, binomial)
        assert schedule.extra_forwards == binomial_extra(depth, snapshots)
        assert kept_at_turn(schedule) == min(snapshots, depth - 1)
        assert most_graphs(schedule) == 1


@pytest.mark.parametrize(("depth", "snapshots"), [(20, 3), (40, 4)])
def test_no_block_runs_more_often_than_the_repetitions_and_once_for_its_tape(depth, snapshots):
    repetitions = 3  # C(3 + 3, 3) = 20, C(4 + 3, 3) = 35 < 40
    schedule = divided(depth, snapshots, binomial)
    assert max(schedule.runs(block) for block in range(depth)) <= 1 + repetitions + (depth == 40)


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 6])
def test_no_schedule_with_one_tape_runs_fewer_blocks(depth):
    chain = equal_chain(depth)
    rivals = [each for each in every_persistent(depth) if most_graphs(each) == 1]
    for snapshots in range(1, depth):
        own = divided(depth, snapshots, binomial)
        peak = predicted(own, chain).peak_bytes
        assert own.extra_forwards == min(r.extra_forwards for r in rivals if predicted(r, chain).peak_bytes <= peak)


@settings(max_examples=60)
@given(chains(most=7))
def test_the_budget_holds_more_of_it_costs_no_time_and_rotor_is_no_slower(chain: Chain):
    with pytest.raises(Infeasible) as error:
        revolved(chain, 0)
    budgets = range(error.value.least_bytes, error.value.least_bytes + 100, 7)
    times = []
    for budget in budgets:
        seen = predicted(revolved(chain, budget), chain)
        assert seen.peak_bytes <= budget
        assert predicted(fastest(chain, budget), chain).time_s <= seen.time_s * (1 + 1e-9)
        times.append(seen.time_s)
    assert times == sorted(times, reverse=True)


def test_segments_can_be_faster_in_the_same_memory():
    """Why the card claims no dominance over them: where graphs are as small as inputs, several fit."""
    chain = Chain((Stage(1.0, 1.0, 2.0, 1, (), 1, 1, 1, holds_output=True),) * 24, 1)
    segments = [predicted(way, chain) for way in equal_segments(24)]
    assert any(each.time_s < predicted(revolved(chain, each.peak_bytes), chain).time_s for each in segments)
    for each in segments:
        assert predicted(fastest(chain, each.peak_bytes), chain).time_s <= each.time_s


def test_96_blocks_are_planned_at_every_budget():
    chain = equal_chain(96)
    with pytest.raises(Infeasible, match="binomial") as error:
        revolved(chain, 0)
    assert error.value.least_bytes == 8
    assert revolved(chain, 7 + 6).extra_forwards == 360 - 96
