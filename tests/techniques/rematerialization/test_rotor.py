"""Rotor: equal to every persistent schedule tried one by one, in memory to the byte."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.chain.chain import Chain, Stage
from suite.chain.exhaustive import fastest as search
from suite.chain.plan import Infeasible, from_the_input
from suite.chain.schedule import plain
from suite.chain.simulate import predicted
from techniques.rematerialization.rotor.technique import fastest
from techniques.shared import persistent as tables
from techniques.shared.persistent import Persistent, persistent
from techniques.shared.persistent_probes import (
    beside_rivals,
    equal_segments,
    every_persistent,
    fastest_of,
    of_any_ends,
    unlike_chains,
)

BLOCK = Stage(1.0, 1.0, 2.0, 1, (2,), 1, 3, 1)


@pytest.mark.parametrize(("depth", "count"), [(1, 2), (2, 6), (3, 22), (4, 90), (5, 394), (6, 1806)])
def test_all_schedules_of_a_chain_are_tried(depth, count):
    each = every_persistent(depth)
    assert len(each) == len(set(each)) == count
    assert {plain(depth), from_the_input(depth), *equal_segments(depth)} <= set(each)


def test_no_budget_that_a_persistent_schedule_fits_is_refused():
    """Graphs that hold either end, both or none. The budgets are those at which another schedule begins to be the
    fastest."""
    for chain in of_any_ends(unlike_chains(30, depth=4)):
        best = fastest_of(chain, every_persistent(4))
        own = [predicted(fastest(chain, each.peak_bytes), chain) for each in best]  # raises where it refuses
        assert [each.time_s for each in own] == pytest.approx([each.time_s for each in best], rel=1e-9)


def test_below_its_least_no_schedule_at_all_fits_these_chains():
    for chain in of_any_ends(unlike_chains(12, depth=3)):
        least = persistent(chain).least_bytes
        assert math.isinf(search(chain, least - 1)) and not math.isinf(search(chain, least))


def test_no_persistent_schedule_of_six_blocks_is_faster_at_any_budget():
    stages = [replace(BLOCK, output_bytes=1 + n % 3, saved_bytes=(2 * n % 5,), save_peak_bytes=9) for n in range(6)]
    slowest, highest = beside_rivals(fastest, Chain(tuple(stages), 2, 1, 3, 1.0, 4))
    assert slowest == pytest.approx(1, rel=1e-9) and highest <= 1


def test_more_points_than_slots_are_rounded_up(monkeypatch):
    unlike = [
        replace(
            BLOCK,
            run_s=1 + n % 7 / 7,
            output_bytes=90 + n * 37 % 50,
            saved_bytes=(300 + n * 91 % 200,),
            run_peak_bytes=150,
            save_peak_bytes=700,
            back_peak_bytes=150,
        )
        for n in range(9)
    ]
    chain = Chain(tuple(unlike), 100)
    exact = Persistent(chain)
    monkeypatch.setattr(tables, "SLOTS", 12)
    rounded = Persistent(chain)
    assert max(len(each.nbytes) for each in rounded.frontiers.values()) <= 13 < len(exact.frontiers[0, 9].nbytes)
    assert rounded.least_bytes == exact.least_bytes
    monkeypatch.setattr("techniques.rematerialization.rotor.technique.persistent", lambda _: rounded)
    for budget in range(rounded.least_bytes, 6000, 97):
        assert predicted(fastest(chain, budget), chain).peak_bytes <= budget
        assert rounded.seconds(budget) >= exact.seconds(budget)


def test_a_budget_below_the_least_is_refused_with_the_least():
    chain = Chain((BLOCK,) * 4, 1)
    with pytest.raises(Infeasible, match="its least is") as error:
        fastest(chain, 1)
    least = error.value.least_bytes
    assert (
        predicted(fastest(chain, least), chain).peak_bytes
        == least
        == fastest_of(chain, every_persistent(4))[0].peak_bytes
    )
