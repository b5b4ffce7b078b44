"""TFLMS: distances by hand, and the largest threshold that fits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Value, plain
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.offloaded_probes import left_in
from techniques.offloading.tflms.technique import TFLMS, distance
from tests.chain.chains import chains

LINK = Link(5.0, 5.0)


def test_distances_by_hand():
    # operations of three blocks: F0 F1 F2 B2 B1 B0
    assert [distance(3, Value(block)) for block in range(3)] == [5, 3, 1]


@settings(max_examples=15)
@given(chains())
def test_more_memory_lets_more_stay_until_all_does(chain: Chain):
    highest = predicted(plain(chain.depth), chain).peak_bytes
    budgets = [*range(least_peak(chain, candidates(chain), LINK), highest, 7), highest]
    moved = [left_in(TFLMS().solve(chain, budget, LINK)) for budget in budgets]
    assert all(later <= earlier for earlier, later in pairwise(moved))
    assert not moved[-1]
