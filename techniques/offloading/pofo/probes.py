"""Tells what a recorded step shows of joint plans: all that a planned step shows, and how they stand beside both
parents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.offloading.pofo.technique import POFO
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.offloaded_probes import budgets, even_link, times
from techniques.offloading.shared.priorities import by_priority
from techniques.shared.persistent import persistent
from techniques.shared.persistent_probes import unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes

SLOWER, FASTER = 1e-9, 1e12


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "throughout", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "throughout",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged("runs_beside_plan", "Every block runs as often as the schedule says", "throughout", id="runs_as_planned")
@judged(
    "time_over_parents",
    "The combination is never slower than recomputation or offloading alone",
    "Abstract: outperforms both",
    id="no_slower_than_parents",
    at_most=1.0,
    note="simulated, at six budgets, three links and on chains of unlike blocks; offloading by priority",
)
@judged(
    "plan_over_budget",
    "The plan for any memory limit needs no more than it",
    "throughout",
    id="plans_within_every_budget",
    at_most=1.0,
)
@judged(
    "slow_link_beside_rotor",
    "Over a link that carries nothing the plan is rotor's",
    "by construction",
    id="slow_link_is_rotor",
    note="simulated seconds",
)
@judged(
    "fast_link_again",
    "Over a link that takes no time nothing runs again",
    "by construction",
    id="fast_link_recomputes_nothing",
    note="where offloading alone fits",
)
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", at_most=1.0, kind="counted")
def probes(recording: Recording, own: POFO) -> Mapping[str, float]:
    """Includes those of all that plan. The largest of all cases counts; over the slow link seconds are compared, over
    the fast one blocks are counted. For a claim, ``best_gain`` is the smallest of the time over the faster parent's."""
    ratios, over, beside, again = [], 0.0, 0.0, 0
    for chain in (*own.chains, *unlike_chains(4)):
        link = even_link(chain)
        for budget in budgets(chain):
            for speed in (link, times(link, 0.2), times(link, 5)):
                for best in _faster_parent(chain, budget, speed):
                    seen = predicted(own.solve(chain, budget, speed), chain, speed)
                    ratios.append(seen.time_s / best)
                    over = max(over, seen.peak_bytes / budget)
            if budget >= persistent(chain).least_bytes:
                slow = times(link, SLOWER)
                took = predicted(own.solve(chain, budget, slow), chain, slow).time_s
                beside = max(beside, abs(took - persistent(chain).seconds(budget)) / took)
            fast = times(link, FASTER)
            if least_peak(chain, candidates(chain), fast) <= budget:
                again += own.solve(chain, budget, fast).extra_forwards
    return scheduled_probes(recording, own) | {
        "time_over_parents": round(max(ratios), 9),
        "best_gain": round(min(ratios), 9),
        "plan_over_budget": over,
        "slow_link_beside_rotor": round(beside, 6),
        "fast_link_again": again,
    }


def _faster_parent(chain: Chain, budget: int, link: Link) -> Iterator[float]:
    """Yields the time of rotor's or of the best by priority; nothing where neither fits."""
    seconds = []
    if budget >= persistent(chain).least_bytes:
        seconds.append(persistent(chain).seconds(budget))
    with suppress(Infeasible):
        seconds.append(predicted(by_priority(chain, budget, link), chain, link).time_s)
    yield from [min(seconds)] if seconds else []
