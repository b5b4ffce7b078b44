"""Revolve: the closed form against the recurrence, every schedule against all with one tape, memory to the byte."""

from __future__ import annotations

import pytest

from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.rematerialization.revolve.technique import revolved
from techniques.rematerialization.shared.divided import advances, binomial, divided
from techniques.shared.persistent_probes import (
    binomial_extra,
    equal_chain,
    every_persistent,
    most_graphs,
)


def test_the_closed_form_is_the_recurrence():
    assert all(advances(n, s) == binomial_extra(n, s) for n in range(1, 60) for s in range(1, 12))


@pytest.mark.parametrize(("steps", "snapshots", "forwards"), [(12, 3, 33), (24, 4, 75), (48, 5, 164), (96, 6, 360)])
def test_forward_passes_of_the_literature(steps, snapshots, forwards):
    assert steps + divided(steps, snapshots, binomial).extra_forwards == forwards


@pytest.mark.parametrize(("depth", "snapshots"), [(20, 3), (40, 4)])
def test_no_block_runs_more_often_than_the_repetitions_and_once_for_its_tape(depth, snapshots):
    repetitions = 3  # C(3 + 3, 3) = 20, C(4 + 3, 3) = 35 < 40
    schedule = divided(depth, snapshots, binomial)
    assert max(schedule.runs(block) for block in range(depth)) <= 1 + repetitions + (depth == 40)


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_no_schedule_with_one_tape_runs_fewer_blocks(depth):
    chain = equal_chain(depth)
    rivals = [each for each in every_persistent(depth) if most_graphs(each) == 1]
    for snapshots in range(1, depth):
        own = divided(depth, snapshots, binomial)
        peak = predicted(own, chain).peak_bytes
        assert own.extra_forwards == min(r.extra_forwards for r in rivals if predicted(r, chain).peak_bytes <= peak)


def test_24_blocks_are_planned_and_the_least_budget_is_named():
    chain = equal_chain(24)
    with pytest.raises(Infeasible, match="binomial") as error:
        revolved(chain, 0)
    assert error.value.least_bytes == 8
    assert revolved(chain, 7 + 4).extra_forwards == 75 - 24
