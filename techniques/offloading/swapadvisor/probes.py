"""Tells what a recorded step shows of SwapAdvisor: its transfers; how its search goes; and its plans beside simpler
ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule, Value, plain
from suite.chain.simulate import Prediction, predicted
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded import candidates, fastest_way, least_peak, nbytes
from techniques.offloading.shared.offloaded_probes import budgets, even_link, offloaded_probes, times
from techniques.offloading.swapadvisor.solver import Planner, evolved
from techniques.offloading.swapadvisor.technique import SwapAdvisor
from techniques.shared.persistent_probes import unlike_chains

RATES = (0.3, 3.0)


@judged_as(offloaded_probes)
@judged(
    "plan_over_budget",
    "The plan for any memory limit needs no more than it",
    "throughout",
    id="plans_within_every_budget",
    at_most=1.0,
    note="simulated, at several budgets and links, on the model's chains and on chains of unlike blocks",
)
@judged(
    "fitness_beside_time",
    "Fitness is the simulated time of the plan",
    "throughout",
    id="fitness_is_time",
    note="simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; as a share",
)
@judged(
    "worse_generations",
    "The best of a generation is no less fit than that of the one before",
    "by construction: parents compete with children",
    id="never_less_fit",
    note="simulated, at several budgets and links, on the model's chains and on chains of unlike blocks",
)
@judged(
    "time_over_all",
    "No slower than to move everything, or all blocks' inputs",
    "by construction: both allocations are in the first generation",
    id="no_slower_than_vdnn",
    at_most=1.0,
    note=(
        "simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; with the best "
        "lag and distance of each; the best of a first generation of two as well"
    ),
)
@judged(
    "time_over_lru",
    "No slower than to evict what was used least recently",
    "by construction",
    id="no_slower_than_lru",
    at_most=1.0,
    note=(
        "simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; with the best "
        "lag and distance"
    ),
)
@judged(
    "nearer_left",
    "The value with the furthest next use leaves first",
    "swap planning",
    id="furthest_next_use",
    note=(
        "simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; plans in "
        "which a nearer one leaves, everything shared"
    ),
)
@judged(
    "later_than_fits",
    "What left comes back as soon as it fits",
    "swap planning",
    id="as_soon_as_possible",
    note=(
        "simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; plans from "
        "which one could come back an operation earlier"
    ),
)
@judged("out_beside_plan", "The chosen values leave, and no other", id="moves_as_planned", kind="counted")
@judged(
    "search_gain",
    "Later generations are fitter than the first somewhere",
    id="search_helps",
    below=1.0,
    kind="counted",
    note=(
        "simulated, at several budgets and links, on the model's chains and on chains of unlike blocks; the smallest "
        "of the last generation's best over the first's"
    ),
)
def probes(recording: Recording, own: SwapAdvisor) -> Mapping[str, float]:
    """Includes those of all that offload. The largest of all cases counts, but for ``search_gain`` the smallest: the
    last generation's best over the first's. Plans and generations that are off are counted. Least recent use has the
    best of its lags and distances."""
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
    """Finds the fastest plan in which what was used least recently leaves, once an operation needs its room."""
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
    """Yields chains, budgets within which something must leave, and links."""
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
    """Tells whether the first value that comes back after some operation fits before it, too."""
    ops = list(plan.ops)
    for number, op in enumerate(ops):
        if op.kind == "prefetch" and ops[number - 1].kind in ("turn", "back"):
            earlier = number - 1
            tried = [*ops[:earlier], op, ops[earlier], *ops[number + 1 :]]
            if predicted(Schedule(plan.depth, tuple(tried)), chain, link).peak_bytes <= budget:
                return True
    return False
