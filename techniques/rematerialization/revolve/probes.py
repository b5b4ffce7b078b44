"""What a recorded step shows of revolve: the binomial number of runs for the snapshots that there are."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.rematerialization.revolve.technique import Revolve
from techniques.shared.persistent_probes import binomial_extra, equal_chain, kept_at_turn, most_graphs
from techniques.shared.recomputation_probes import order_of, scheduled_probes

BLOCKS = 12
LEAST_BYTES = 8  # for one snapshot, the chain's input: another block's input and graph, and two gradients


def probes(recording: Recording, own: Revolve) -> Mapping[str, float]:
    """Those of all that plan; ``forwards_beside_formula``: forward passes in the step, more or fewer than n + E(n, s)
    of all stacks; ``beside_formula_on_equal``: so it is over 12 equal blocks, summed over all numbers of snapshots, and
    ``snapshots_beside_room``: those at the turn there, more or fewer than the budget has room for; ``graphs``: most
    that are kept at once."""
    run, schedules = recording.run, own.plan(recording.run).schedules
    orders = [order_of(stack, recording.trace.ran) for stack in run.anatomy.stacks]
    pairs = list(zip(orders, schedules, strict=True))
    on_equal = {room: own.solve(equal_chain(BLOCKS), LEAST_BYTES + room, None) for room in range(BLOCKS - 1)}
    return scheduled_probes(recording, own) | {
        "forwards_beside_formula": sum(
            abs(len(order) - schedule.depth - binomial_extra(schedule.depth, kept_at_turn(schedule)))
            for order, schedule in pairs
        ),
        "beside_formula_on_equal": sum(
            abs(value.extra_forwards - binomial_extra(BLOCKS, kept_at_turn(value))) for value in on_equal.values()
        ),
        "snapshots_beside_room": sum(abs(kept_at_turn(schedule) - 1 - room) for room, schedule in on_equal.items()),
        "graphs": max(most_graphs(schedule) for schedule in [*schedules, *on_equal.values()]),
    }
