"""vDNN: its policies move what they say, within the budget, and change no number of a run."""

from __future__ import annotations

import pytest
from hypothesis import given

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import plain
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak, leaving, nbytes
from techniques.offloading.vdnn.technique import VDNN
from tests.chain.chains import chains
from tests.runs import new_run

LINK = Link(5.0, 5.0)


@given(chains())
def test_everything_that_leaves_comes_back(chain: Chain):
    chosen = candidates(chain)
    seen = predicted(leaving(chain, chosen), chain, LINK)
    assert seen.out_bytes == seen.in_bytes == sum(nbytes(chain, value) for value in chosen)
    assert seen.compute_s == pytest.approx(chain.plain_s)


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


def test_a_faster_link_is_never_slower():
    (chain,) = VDNN().profile(new_run("gpt", size="nano", steps=4))
    rates = [1e9, 1e10, 1e11, 1e15]
    times = [predicted(leaving(chain, candidates(chain)), chain, Link(rate, rate)).time_s for rate in rates]
    assert times == sorted(times, reverse=True) and times[-1] == pytest.approx(chain.plain_s, rel=1e-4)


def test_a_policy_that_does_not_fit_says_what_would():
    (chain,) = VDNN().profile(new_run("gpt", size="nano", steps=4))
    with pytest.raises(Infeasible, match="its least is"):
        VDNN(policy="inputs").solve(chain, least_peak(chain, candidates(chain), LINK), LINK)
