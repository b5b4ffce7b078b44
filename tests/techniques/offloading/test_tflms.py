"""TFLMS: distance alone decides, the largest threshold that fits is taken, and no number of a run changes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
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


@given(chains())
def test_more_memory_lets_more_stay(chain: Chain):
    highest = predicted(plain(chain.depth), chain).peak_bytes
    moved = []
    for budget in range(least_peak(chain, candidates(chain), LINK), highest + 5, 7):
        schedule = TFLMS().solve(chain, budget, LINK)
        assert predicted(schedule, chain, LINK).peak_bytes <= budget
        moved.append(left_in(schedule))
    assert all(later <= earlier for earlier, later in pairwise(moved))
    with pytest.raises(Infeasible):
        TFLMS().solve(chain, 0, LINK)
