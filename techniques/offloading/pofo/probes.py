"""What a recorded step shows of joint plans: all that a planned step shows, and how they stand beside both parents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from suite.reading.recording import Recording
from techniques.offloading.pofo.technique import POFO
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.offloaded_probes import budgets, even_link, times
from techniques.offloading.shared.priorities import by_priority
from techniques.shared.persistent import persistent
from techniques.shared.persistent_probes import unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes

SLOWER, FASTER = 1e-9, 1e12


def probes(recording: Recording, own: POFO) -> Mapping[str, float]:
    """Those of all that plan; ``time_over_parents``: the largest of the time over the faster parent's, over budgets and
    links, on the model's chains and some of unlike blocks, ``best_gain``, the smallest, and
    ``plan_over_budget``, the largest of the predicted peak over the budget there; ``slow_link_beside_rotor``:
    seconds beside rotor's over a link that carries next to nothing; ``fast_link_again``: blocks that run again over one
    that takes no time, where offloading alone fits."""
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
    """The time of rotor's or of the best by priority; nothing where neither fits."""
    seconds = []
    if budget >= persistent(chain).least_bytes:
        seconds.append(persistent(chain).seconds(budget))
    with suppress(Infeasible):
        seconds.append(predicted(by_priority(chain, budget, link), chain, link).time_s)
    yield from [min(seconds)] if seconds else []
