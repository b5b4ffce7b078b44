"""Tells what a recorded step shows of optimal offloading: its transfers, and how its plans stand beside every set of
values, each timed by trial in the simulation, and beside what heuristics choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from suite.chain.chain import Chain, Link
from suite.chain.schedule import TURN, Op, Schedule, Value, plain, tidied
from suite.chain.simulate import predicted
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.offloading.offload_dp.technique import OffloadDP
from techniques.offloading.shared.offloaded import candidates, fastest_way, least_peak, nbytes
from techniques.offloading.shared.offloaded_probes import even_link, offloaded_probes
from techniques.offloading.shared.priorities import SCORES, Trace, first_that_fit, ranked
from techniques.shared.persistent_probes import unlike_chains

RATES = (0.3, 1.5)  # of the link that carries a pass's values in its time
SLOWER_BACK = 0.6
SHARES = (0.2, 0.6)  # of the way from the least budget that offloading can meet to a plain pass's


@judged_as(offloaded_probes)
@judged(
    "time_over_best",
    "No set of values is faster",
    "by construction",
    id="optimal",
    equals=1.0,
    note=(
        "chains of three unlike blocks, six values, two budgets, two links; every set, timed by trial in the simulation"
    ),
)
@judged(
    "plan_over_budget",
    "The plan for any memory limit needs no more than it",
    "throughout",
    id="plans_within_every_budget",
    at_most=1.0,
)
@judged(
    "out_of_order",
    "Values leave in the order of the blocks, and come back in the reverse order, each asked for before its use",
    "by construction",
    id="in_order",
)
@judged(
    "peak_over_budget", "The device's peak is within the memory limit", id="within_budget", at_most=1.0, kind="counted"
)
@judged("out_beside_plan", "The chosen values leave, and no other", id="moves_as_planned", kind="counted")
@judged(
    "time_over_rivals",
    "No heuristic's plan is faster",
    "Abstract: strongly NP-hard, with two heuristics from relaxations; this is of the chains that are tried here",
    id="no_slower_than_heuristics",
    at_most=1.0,
    kind="counted",
    note=(
        "simulated, on the model's chains and some of unlike blocks, at two budgets and over two links; the choices "
        "of vDNN, TFLMS, AutoSwap and, without recomputation, Capuchin"
    ),
)
def probes(recording: Recording, own: OffloadDP) -> Mapping[str, float]:
    """Includes those of all that offload. The largest of all cases counts. For a claim, ``mean_over_rivals`` is the
    mean of a plan's time over the fastest heuristic's."""
    best = [
        predicted(own.solve(*case), case[0], case[2]).time_s / fastest_of_all(*case)
        for chain in _unlike(3)
        for case in cases(chain)
    ]
    ratios, over, disorder = [], 0.0, 0
    for chain in (*own.chains, *_unlike(8)):
        for case in cases(chain):
            schedule = own.solve(*case)
            seen = predicted(schedule, chain, case[2])
            ratios.append(seen.time_s / fastest_rival(*case))
            over = max(over, seen.peak_bytes / case[1])
            disorder += _out_of_order(schedule)
    return offloaded_probes(recording, own) | {
        "time_over_best": round(max(best), 9),
        "time_over_rivals": round(max(ratios), 9),
        "mean_over_rivals": sum(ratios) / len(ratios),
        "plan_over_budget": over,
        "out_of_order": disorder,
    }


def cases(chain: Chain) -> Iterator[tuple[Chain, int, Link]]:
    """Yields budgets and links, slower on the way back, at which something has to leave."""
    for rate in RATES:
        even = even_link(chain).out_bytes_per_s
        link = Link(rate * even, SLOWER_BACK * rate * even)
        low, high = least_peak(chain, candidates(chain), link), predicted(plain(chain.depth), chain).peak_bytes
        yield from ((chain, low + int(share * (high - low)), link) for share in SHARES if low < high)


def _unlike(count: int) -> Iterator[Chain]:
    """Yields chains whose turn has in it what is there at its end, as a model's has, and takes a while."""
    for chain in unlike_chains(count):
        end = chain.activation_bytes[-1] + max(0, chain.backward_bytes - chain.forward_bytes)
        yield replace(chain, turn_s=5.0, turn_peak_bytes=max(end, chain.turn_peak_bytes))


def fastest_of_all(chain: Chain, budget: int, link: Link) -> float:
    """Returns the seconds of the fastest pass of every set of values."""
    values = [value for value in candidates(chain) if nbytes(chain, value)]
    sets = [chosen for count in range(1, len(values) + 1) for chosen in combinations(values, count)]
    return min(_by_trial(chain, chosen, budget, link, in_turn) for chosen in sets for in_turn in ("out", "back"))


def _by_trial(chain: Chain, chosen: Sequence[Value], budget: int, link: Link, in_turn: str) -> float:
    """Waits are added one by one before the first operation that does not fit, and what comes back is asked for as much
    earlier as fits; infinite where nothing helps."""
    depth = chain.depth
    gone = [0] * depth + [len(chosen) if in_turn == "back" else 0]
    asked = [value.block for value in chosen]

    def seen() -> tuple[float, list[int]]:
        """Returns the seconds, and the forward passes and the turn that do not fit, or that of no number where another
        does not."""
        cost = predicted(_written(depth, chosen, gone, asked), chain, link)
        over = [moment.op for moment in cost.moments if moment.peak_bytes > budget]
        return cost.time_s, [depth if op == TURN else op.block if op.kind == "save" else -1 for op in over]

    over = seen()[1]
    while over:
        first = min((op for op in over if op >= 0), default=-1)
        if first < 0 or gone[first] == sum(value.block < first for value in chosen):
            return math.inf
        gone[first] += 1
        over = seen()[1]
    earliest = depth if in_turn == "back" else depth - 1
    for number in reversed(range(len(chosen))):
        for boundary in range(earliest, chosen[number].block - 1, -1):
            asked[number] = boundary
            if not seen()[1]:
                break
        earliest = asked[number]
    return seen()[0]


def _written(depth: int, chosen: Sequence[Value], gone: Sequence[int], asked: Sequence[int]) -> Schedule:
    """Writes the schedule; ``gone``: how many have left before each forward pass and the turn; ``asked``: before which
    operation each is."""

    def ask(boundary: int) -> list[Op]:
        return [Op("prefetch", *chosen[n]) for n in reversed(range(len(chosen))) if asked[n] == boundary]

    ops: list[Op] = []
    for block in range(depth):
        ops += [*(Op("wait", *value) for value in chosen[: gone[block]]), Op("save", block)]
        ops += [Op("offload", *value) for value in chosen if value.block == block]
    ops += [*(Op("wait", *value) for value in chosen[: gone[depth]]), *ask(depth), TURN]
    ops += [Op("wait", *value) for value in chosen if depth not in asked]
    for block in reversed(range(depth)):
        ops += [*ask(block), Op("back", block)]
    return tidied(depth, ops)


def fastest_rival(chain: Chain, budget: int, link: Link) -> float:
    """Returns the seconds of the fastest plan of: all inputs, everything (vDNN), what lies far ahead (TFLMS), the first
    by each priority (AutoSwap), and by free time (Capuchin, which then takes whole blocks)."""
    everything, trace = candidates(chain), Trace.of(chain)
    per_byte_s = 1 / link.out_bytes_per_s + 1 / link.in_bytes_per_s
    free = sorted(everything, key=lambda value: nbytes(chain, value) * per_byte_s - trace.absence_s(value))
    sets = [[value for value in everything if value.item is None], everything]
    sets += [[value for value in everything if value.block < block] for block in range(1, chain.depth)]
    for order in (*(ranked(chain, score) for score in SCORES), free):
        sets.append(order[: first_that_fit(chain, order, budget, link)])
    ways = [fastest_way(chain, chosen, budget, link) for chosen in sets]
    return min((way[1].time_s for way in ways if way), default=math.inf)


def _out_of_order(schedule: Schedule) -> int:
    """Counts the blocks' values that leave before an earlier block's or come back before a later one's, or unasked
    for."""
    ways = {kind: [op.value for op in schedule.ops if op.kind == kind] for kind in ("offload", "prefetch")}
    there, back = ([value.block for value in ways[kind]] for kind in ("offload", "prefetch"))
    unasked = set(ways["offload"]) ^ set(ways["prefetch"])
    late = [
        op for n, op in enumerate(schedule.ops) if op.kind == "prefetch" and Op("back", op.block) in schedule.ops[:n]
    ]
    return len(unasked) + len(late) + (there != sorted(there)) + (back != sorted(back, reverse=True))
