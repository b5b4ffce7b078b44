"""What a recorded step shows of revolve: the binomial number of runs for the snapshots that there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from suite.chain.chain import Chain, Stage
from suite.contract.recording import Recording
from techniques.rematerialization.revolve.technique import Revolve
from techniques.shared.persistent_probes import kept_at_turn, most_graphs
from techniques.shared.recomputation_probes import order_of, scheduled_probes

BLOCKS = 12
EQUAL = Chain((Stage(1.0, 1.0, 2.0, 1, (4,), 1, 5, 1),) * BLOCKS, 1)
LEAST_BYTES = 8  # for one snapshot, the chain's input: another block's input and graph, and two gradients


def probes(recording: Recording, own: Revolve) -> Mapping[str, float]:
    """Those of all that plan; ``forwards_beside_formula``: forward passes in the step, more or fewer than n + E(n, s)
    of all stacks; ``beside_formula_on_equal``: so it is over 12 equal blocks, summed over all numbers of snapshots, and
    ``snapshots_beside_room``: those at the turn there, more or fewer than the budget has room for; ``graphs``: most
    that are kept at once."""
    run, schedules = recording.run, own.plan(recording.run).schedules
    orders = [order_of(stack, recording.trace.ran) for stack in run.anatomy.stacks]
    pairs = list(zip(orders, schedules, strict=True))
    on_equal = {room: own.solve(EQUAL, LEAST_BYTES + room, None) for room in range(BLOCKS - 1)}
    return scheduled_probes(recording, own) | {
        "forwards_beside_formula": sum(
            abs(len(order) - each.depth - extra(each.depth, kept_at_turn(each))) for order, each in pairs
        ),
        "beside_formula_on_equal": sum(
            abs(each.extra_forwards - extra(BLOCKS, kept_at_turn(each))) for each in on_equal.values()
        ),
        "snapshots_beside_room": sum(abs(kept_at_turn(each) - 1 - room) for room, each in on_equal.items()),
        "graphs": max(most_graphs(each) for each in [*schedules, *on_equal.values()]),
    }


@cache
def extra(steps: int, snapshots: int) -> int:
    """E(n, s), by the recurrence."""
    if steps == 1:
        return 0
    if snapshots <= 1:
        return steps * (steps - 1) // 2
    return min(i + extra(i, snapshots) + extra(steps - i, snapshots - 1) for i in range(1, steps))
