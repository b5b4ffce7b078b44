"""vDNN: its dynamic policy is the fastest of those that fit."""

from __future__ import annotations

from hypothesis import given, settings

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import plain
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.vdnn.technique import VDNN
from tests.chain.chains import chains

LINK = Link(5.0, 5.0)


@settings(max_examples=15)
@given(chains())
def test_the_dynamic_policy_is_the_fastest_of_those_that_fit(chain: Chain):
    highest = predicted(plain(chain.depth), chain).peak_bytes
    for budget in range(least_peak(chain, candidates(chain), LINK), highest + 5, 7):
        times = []
        for policy in ("inputs", "all"):
            try:
                seen = predicted(VDNN(policy=policy).solve(chain, budget, LINK), chain, LINK)
            except Infeasible:
                continue
            assert seen.peak_bytes <= budget
            times.append(seen.time_s)
        dynamic = predicted(VDNN().solve(chain, budget, LINK), chain, LINK)
        assert dynamic.peak_bytes <= budget and dynamic.time_s <= min(times)
