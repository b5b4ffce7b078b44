"""Tells what a recorded step shows of AutoSwap: its transfers, and that no more leaves than must."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import Schedule, Value, plain
from suite.chain.simulate import predicted
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.offloading.autoswap.technique import AutoSwap
from techniques.offloading.shared.offloaded import leaving
from techniques.offloading.shared.offloaded_probes import budgets, left_in, offloaded_probes
from techniques.shared.persistent_probes import unlike_chains


@judged_as(offloaded_probes)
@judged(
    "one_too_many",
    "As few values leave as the order of priority allows",
    "Section 4: selected until the load is below the limit",
    id="fewest",
    note="plans from which the last chosen value could have stayed, on chains of unlike blocks, each score",
)
@judged(
    "more_moved_for_more",
    "The more memory, the fewer bytes leave",
    "Section 4",
    id="more_memory_fewer_moves",
    note="budgets at which more bytes leave than at a smaller one, by area of absence",
)
@judged(
    "peak_over_budget", "The device's peak is within the memory limit", id="within_budget", at_most=1.0, kind="counted"
)
@judged("out_beside_plan", "The chosen values leave, and no other", id="moves_as_planned", kind="counted")
def probes(recording: Recording, own: AutoSwap) -> Mapping[str, float]:
    """Includes those of all that offload."""
    link, too_many, more = own.link(), 0, 0
    for chain in (*own.chains, *unlike_chains(8, depth=4)):
        moved = [(budget, left_in(schedule), schedule) for budget, schedule in _plans(chain, link)]
        too_many += sum(_could_stay(chain, budget, values, link) for budget, values, _ in moved if values)
        traffic = [predicted(schedule, chain, link).out_bytes for *_, schedule in moved]
        more += sum(later > earlier for earlier, later in pairwise(traffic))
    return offloaded_probes(recording, own) | {"one_too_many": too_many, "more_moved_for_more": more}


def _plans(chain: Chain, link: Link) -> Iterator[tuple[int, Schedule]]:
    for budget in budgets(chain):
        try:
            yield budget, AutoSwap(score="aoa").solve(chain, budget, link)
        except Infeasible:
            continue


def _could_stay(chain: Chain, budget: int, values: set[Value], link: Link) -> bool:
    """Tells whether the pass fits without the value whose absence times bytes is least."""
    times = {m.op: (m.start_s, m.end_s) for m in predicted(plain(chain.depth), chain).moments}
    ends = {(op.kind, op.block): at for op, at in times.items()}

    def area(value: Value) -> float:
        block, item = value
        size = chain.activation_bytes[block] if item is None else chain.stages[block].saved_bytes[item]
        return (ends["back", block][0] - ends["save", block][1]) * size

    least = min(values, key=area)
    rest = [value for value in values if value != least]
    ties = sum(area(value) == area(least) for value in values) > 1
    return not ties and predicted(leaving(chain, rest, 0, 0), chain, link).peak_bytes <= budget
