"""Checks what a recorded step shows of rotor: that it ran as planned, and that no persistent schedule is faster."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.rotor.technique import Rotor
from techniques.shared.persistent_probes import beside_rivals, of_any_ends, unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "Section 3", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 3: recomputation changes no result",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged(
    "runs_beside_plan",
    "Every block runs as often as the schedule says",
    "Abstract: executed according to the computed strategy",
    id="runs_as_planned",
)
@judged(
    "time_over_best",
    "No persistent schedule within the same memory is faster, at any budget",
    "Abstract: the optimal computation sequence, given a memory limit",
    id="optimal",
    equals=1.0,
    tolerance=1e-9,
    note="up to 6 blocks all schedules are tried, one by one; of deeper stacks, equal segments of every length",
)
@judged(
    "plan_over_budget",
    "The schedule for any memory limit needs no more than it",
    "Abstract: the optimal computation sequence, given a memory limit",
    id="plans_within_every_budget",
    at_most=1.0,
)
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", equals=1.0, kind="counted")
@judged(
    "extra_forwards",
    "Half of the memory between the least and the plain peak costs less than one more forward pass",
    id="less_than_one_more_forward",
    below=1.0,
    kind="counted",
    note="the baselines' chains, at a budget of 0.5",
)
def probes(recording: Recording, own: Rotor) -> Mapping[str, float]:
    """Includes those of all that plan. Times and peaks are the largest of the model's chains and of some whose blocks
    are unlike, with graphs that hold either end, at every budget at which the fastest persistent schedule changes."""
    chains = [*own.chains, *unlike_chains(), *of_any_ends(unlike_chains())]
    beside = [beside_rivals(lambda chain, budget: own.solve(chain, budget, None), chain) for chain in chains]
    return scheduled_probes(recording, own) | {
        "time_over_best": max(time for time, _ in beside),
        "plan_over_budget": max(peak for _, peak in beside),
    }
