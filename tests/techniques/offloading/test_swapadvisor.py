"""SwapAdvisor: the search comes near the best plan, and a plan by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
import pytest

from suite.chain.chain import Chain, Link, Stage
from suite.chain.schedule import TURN, Kind, Op, Schedule, Value, backs, plain, tidied
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak
from techniques.offloading.shared.offloaded_probes import even_link, times
from techniques.offloading.swapadvisor.solver import Planner, chances, evolved, swapped
from techniques.shared.persistent_probes import unlike_chains

LINK = Link(5.0, 5.0)
KINDS: tuple[Kind, ...] = ("offload", "wait", "prefetch")


def highest(chain: Chain) -> int:
    return predicted(plain(chain.depth), chain).peak_bytes


def test_the_search_comes_within_four_percent_of_the_best_of_all_allocations():
    """Measured: the best itself on each of these, where the first generation's best is up to 15 % slower; at most 3.4 %
    slower than it on 270 of twenty such chains at more budgets and links."""
    ratios, first = [], []
    for chain in unlike_chains(6, depth=4):
        for rate in (0.3, 3.0):
            link = times(even_link(chain), rate)
            least = least_peak(chain, candidates(chain), link)
            for budget in np.linspace(least, highest(chain), 4, dtype=int).tolist()[:-1]:
                planner = Planner(chain, budget, link)
                every = product([False, True], repeat=len(planner.values))
                best = min(planner.fitness(np.array(genes)) for genes in every)
                search = evolved(planner, 0, 40, 32)
                assert all(later <= earlier for earlier, later in pairwise(search.best_s))
                ratios.append(search.best_s[-1] / best)
                first.append(search.best_s[0] / best)
    assert min(ratios) >= 1 - 1e-9 and max(ratios) <= 1.04
    assert np.mean(ratios) < np.mean(first)


def every_plan(depth: int, values: list[Value]) -> Iterator[Schedule]:
    """All plain passes in which each value stays, or leaves behind some operation, is waited for behind that or a later
    one and asked for behind that or a later one; behind one operation, what was saved last comes back first."""
    computes = [*(Op("save", block) for block in range(depth)), TURN, *backs(range(depth))]

    def ways(value: Value) -> list[tuple[int, ...]]:
        behind = range(value.block, 2 * depth - value.block)
        return [(), *combinations_with_replacement(behind, 3)]

    for chosen in product(*map(ways, values)):
        ops: list[Op] = []
        for number, op in enumerate(computes):
            ops.append(op)
            for place, kind in enumerate(KINDS):
                here = [Op(kind, *v) for v, way in zip(values, chosen, strict=True) if way and way[place] == number]
                ops += reversed(here) if kind == "prefetch" else here
        yield tidied(depth, ops)


def test_the_search_comes_within_three_percent_of_the_best_of_all_plans():
    """Of two blocks: whatever leaves, and whenever it leaves, is waited for and comes back.

    Measured here: at most 2.7 % slower, where a value that must be away late had better leave the link to a later one
    that must be away soon.
    """
    ratios = []
    for chain in unlike_chains(1, depth=2):
        schedules = set(every_plan(2, candidates(chain)))
        link = even_link(chain)
        costs = [predicted(schedule, chain, link) for schedule in schedules]
        least = least_peak(chain, candidates(chain), link)
        assert min(cost.peak_bytes for cost in costs) == least
        for budget in range(least, highest(chain), 4):
            best = min(cost.time_s for cost in costs if cost.peak_bytes <= budget)
            own = predicted(swapped(chain, budget, link, generations=10, population=16), chain, link)
            ratios.append(own.time_s / best)
    assert min(ratios) >= 1 - 1e-9 and max(ratios) <= 1.03


TWO = Chain((Stage(1, 1, 2, 10, (50,), 12, 65, 20), Stage(2, 3, 4, 10, (30,), 12, 45, 20)), 10, turn_s=1.0)


def test_a_plan_by_hand():
    """Within 90 bytes 25 must be away in F1, 20 in the turn and 40 in B1: x0 (10) and s0.0 (50) if all is shared, s0.0
    alone if x0 stays."""
    planner = Planner(TWO, 90, LINK)
    moments = [each for each in predicted(plain(2), TWO).moments if each.op.kind != "drop"]
    assert [moment.peak_bytes for moment in moments] == [75, 115, 110, 130, 90]
    assert str(planner.schedule(np.array([True, True, True, True]))) == (
        "F0 -x0 >x0 >s0.0 ~x0 ~s0.0 F1 -x1 -x2 | B1 <s0.0 <x0 B0"
    )
    stays = np.array([False, True, True, True])
    assert str(planner.schedule(stays)) == "F0 -x0 >s0.0 ~s0.0 F1 -x1 -x2 | B1 <s0.0 B0"
    # F0 1 s, out 10 s, F1 3 s, turn 1 s, B1 4 s, back 10 s, B0 2 s
    assert planner.fitness(stays) == 31 and planner.fitness(np.ones(4, dtype=bool)) == 35
    assert planner.fitness(np.zeros(4, dtype=bool)) == pytest.approx(planner.worst_s * (1 + 40 / 90))


def test_parents_are_drawn_by_a_softmax_of_fitness():
    seconds = np.array([1.0, 2.0, 4.0])
    wanted = np.exp(-seconds / seconds.std())
    assert chances(seconds) == pytest.approx(wanted / wanted.sum())
    assert chances(np.array([3.0, 3.0])) == pytest.approx([0.5, 0.5])


def test_a_seed_gives_one_plan_and_leaves_other_draws_alone():
    (chain,) = unlike_chains(1, depth=4)
    planner = Planner(chain, least_peak(chain, candidates(chain), LINK) + 9, LINK)
    np.random.seed(0)
    state = np.random.get_state()[1].tolist()
    runs = [evolved(planner, seed, 4, 8) for seed in (0, 0, 1)]
    assert np.random.get_state()[1].tolist() == state
    assert runs[0].best_s == runs[1].best_s and (runs[0].genes == runs[1].genes).all()
