"""What a recorded step shows of SwapAdvisor: its transfers; how its search goes; and its plans beside simpler ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule, Value, plain
from suite.chain.simulate import Prediction, predicted
from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded import candidates, fastest_way, least_peak, nbytes
from techniques.offloading.shared.offloaded_probes import budgets, even_link, offloaded_probes, times
from techniques.offloading.swapadvisor.solver import Planner, evolved
from techniques.offloading.swapadvisor.technique import SwapAdvisor
from techniques.shared.persistent_probes import unlike_chains

RATES = (0.3, 3.0)


def probes(recording: Recording, own: SwapAdvisor) -> Mapping[str, float]:
    """Those of all that offload, and over budgets and links, on the model's chains and some of unlike blocks:

    ``plan_over_budget``: the largest of a plan's simulated peak over its budget; ``fitness_beside_time``: of the best
    fitness beside the plan's simulated time, as a share; ``worse_generations``: whose best is less fit than the one
    before; ``search_gain``: the smallest of the last generation's best over the first's; ``time_over_all``: the largest
    of a plan's time, and of the best of a first generation of two, over that of vDNN's policies all and inputs;
    ``time_over_lru``: of a plan's over that of a plan by least recent use, these with the best of their lags and
    distances; ``nearer_left``: plans in which, everything shared, a value leaves though one with a further next use
    stays; ``later_than_fits``: plans in which a value could come back an operation earlier.
    """
    over = beside = over_all = over_lru = 0.0
    worse = nearer = late = 0
    gain = 1.0
    for chain, budget, link in _cases(own):
        plan = own.solve(chain, budget, link)
        seen = predicted(plan, chain, link)
        planner = Planner(chain, budget, link)
        best_s = evolved(planner, own.seed, own.generations, own.population).best_s
        over = max(over, seen.peak_bytes / budget)
        beside = max(beside, abs(best_s[-1] - seen.time_s) / seen.time_s)
        worse += sum(later > earlier for earlier, later in pairwise(best_s))
        gain = min(gain, best_s[-1] / best_s[0])
        slower_s = max(seen.time_s, *evolved(planner, own.seed, 0, 2).best_s)
        over_all = max([over_all, *(slower_s / policy.time_s for policy in _policies(chain, budget, link))])
        over_lru = max(over_lru, seen.time_s / by_recent_use(chain, budget, link).time_s)
        everything = planner.schedule(np.ones(len(planner.values), dtype=bool))
        left = [op.value for op in everything.ops if op.kind == "offload"]
        nearer += left != candidates(chain)[: len(left)]
        late += _could_come_earlier(plan, chain, budget, link)
    return offloaded_probes(recording, own) | {
        "plan_over_budget": over,
        "fitness_beside_time": round(beside, 9),
        "worse_generations": worse,
        "time_over_all": round(over_all, 9),
        "time_over_lru": round(over_lru, 9),
        "search_gain": gain,
        "nearer_left": nearer,
        "later_than_fits": late,
    }


def by_recent_use(chain: Chain, budget_bytes: int, link: Link) -> Prediction:
    """The fastest plan in which what was used least recently leaves, once an operation needs its room."""
    used = dict.fromkeys(candidates(chain), 0.0)
    gone: set[Value] = set()
    for moment in predicted(plain(chain.depth), chain).moments:
        done = moment.op.block if moment.op.kind in ("save", "back") else chain.depth
        alive = [value for value in used if value.block < done and value not in gone]
        alive.sort(key=lambda value: used[value])
        absent = sum(nbytes(chain, value) for value in gone if value.block < done)
        while moment.op.kind != "drop" and moment.peak_bytes - absent > budget_bytes:
            absent += nbytes(chain, alive[0])
            gone.add(alive.pop(0))
        for value in used:
            if value.block == moment.op.block:
                used[value] = moment.end_s
    way = fastest_way(chain, [value for value in candidates(chain) if value in gone], budget_bytes, link)
    assert way is not None
    return way[1]


def _cases(own: SwapAdvisor) -> Iterator[tuple[Chain, int, Link]]:
    """Chains, budgets within which something must leave, and links."""
    for chain in (*own.chains, *unlike_chains(4, depth=4)):
        highest = predicted(plain(chain.depth), chain).peak_bytes
        for rate in RATES:
            link = times(even_link(chain), rate)
            least = least_peak(chain, candidates(chain), link)
            yield from ((chain, budget, link) for budget in (least, *budgets(chain, 3)) if least <= budget < highest)


def _policies(chain: Chain, budget: int, link: Link) -> Iterator[Prediction]:
    everything = candidates(chain)
    for chosen in (everything, [value for value in everything if value.item is None]):
        if way := fastest_way(chain, chosen, budget, link):
            yield way[1]


def _could_come_earlier(plan: Schedule, chain: Chain, budget: int, link: Link) -> bool:
    """Whether the first value that comes back after some operation fits before it, too."""
    ops = list(plan.ops)
    for number, op in enumerate(ops):
        if op.kind == "prefetch" and ops[number - 1].kind in ("turn", "back"):
            earlier = number - 1
            tried = [*ops[:earlier], op, ops[earlier], *ops[number + 1 :]]
            if predicted(Schedule(plan.depth, tuple(tried)), chain, link).peak_bytes <= budget:
                return True
    return False
