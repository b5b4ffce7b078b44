"""Checks what a recorded step shows of revolve: the binomial number of runs for the snapshots that there are."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.revolve.technique import Revolve
from techniques.shared.persistent_probes import binomial_extra, equal_chain, kept_at_turn, most_graphs
from techniques.shared.recomputation_probes import order_of, scheduled_probes

BLOCKS = 12
LEAST_BYTES = 8  # for one snapshot, the chain's input: another block's input and graph, and two gradients


@judged(
    "changed",
    "The step's gradients are those of a plain pass, to the bit",
    "Section 1: the results of a plain reversal, in less memory",
    id="same_gradients",
)
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 1: the results of a plain reversal, in less memory",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged(
    "runs_beside_plan",
    "Every block runs as often as the schedule says",
    "Section 1: the results of a plain reversal, in less memory",
    id="runs_as_planned",
)
@judged(
    "forwards_beside_formula",
    "n steps with s snapshots are run n + t(n, s) times in all, t(n, s) = r n - C(s + r, r - 1)",
    "Section 2, the minimal number of evaluations",
    id="binomial_runs",
    note=(
        "counted in the recorded step, for the snapshots at its turn; the probe has the recurrence t(n, s) = min i + "
        "t(i, s) + t(n - i, s - 1)"
    ),
)
@judged(
    "beside_formula_on_equal",
    "The number of runs is the least for every number of snapshots",
    "Section 2, the minimal number of evaluations",
    id="binomial_runs_of_any_number_of_snapshots",
    note="schedules of 12 equal blocks",
)
@judged(
    "snapshots_beside_room",
    "All room for snapshots is used",
    "Section 1",
    id="as_many_snapshots_as_fit",
    note="schedules of 12 equal blocks",
)
@judged("graphs", "One step's tape is there at a time", "Section 1", id="one_tape", equals=1.0)
@judged(
    "peak_over_budget",
    "The peak of a pass is within the memory limit",
    id="within_budget",
    at_most=1.0,
    kind="counted",
    note="the paper's limit is a number of snapshots",
)
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", equals=1.0, kind="counted")
def probes(recording: Recording, own: Revolve) -> Mapping[str, float]:
    """Includes those of all that plan. Runs and snapshots that are more or fewer than they should be are counted, on
    equal blocks over all numbers of snapshots."""
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
