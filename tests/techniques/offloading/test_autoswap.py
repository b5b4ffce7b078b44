"""AutoSwap: scores by hand, and the best of them."""

from __future__ import annotations

from suite.chain.chain import Chain, Stage
from suite.chain.schedule import Value, plain
from suite.chain.simulate import predicted
from techniques.offloading.autoswap.technique import AutoSwap
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.offloaded_probes import even_link
from techniques.offloading.shared.priorities import SCORES, Trace, ranked
from techniques.shared.persistent_probes import unlike_chains

TWO = Chain((Stage(1, 1, 2, 10, (50,), 12, 65, 20), Stage(2, 3, 4, 10, (30,), 12, 45, 20)), 10, turn_s=1.0)


def test_absences_and_scores_by_hand():
    trace = Trace.of(TWO)  # F0 0-1, F1 1-4, turn 4-5, B1 5-9, B0 9-11
    assert [trace.absence_s(Value(block, 0)) for block in (0, 1)] == [8, 1]
    assert ranked(TWO, "doa")[:2] == [Value(0), Value(0, 0)]
    assert ranked(TWO, "aoa") == [Value(0, 0), Value(0), Value(1, 0), Value(1)]
    assert trace.weighted(Value(1, 0), trace.load) == trace.load[2]  # during the turn, a second


def test_the_best_score_is_no_slower_than_any():
    for chain in unlike_chains(4, depth=4):
        link, highest = even_link(chain), predicted(plain(chain.depth), chain).peak_bytes
        budget = (least_peak(chain, candidates(chain), link) + highest) // 2
        schedules = [AutoSwap(score=each).solve(chain, budget, link) for each in (*SCORES, "best")]
        times = [predicted(schedule, chain, link).time_s for schedule in schedules]
        assert times[-1] == min(times)
