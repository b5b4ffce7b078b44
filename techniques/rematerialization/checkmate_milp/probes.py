"""Checks what a recorded step shows of Checkmate: recomputation that changes nothing, within the budget, and none too
much."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.checkmate_milp.technique import CheckmateMILP
from techniques.rematerialization.shared.fastest_probe import over_fastest
from techniques.shared.persistent_probes import of_any_ends, unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "Section 1", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 1: recomputation changes no result",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
def probes(recording: Recording, own: CheckmateMILP) -> Mapping[str, float]:
    """Includes those of every technique that plans. Claims ask for the time over that of the fastest of all schedules,
    of the step and of plans, of chains whose graphs hold either end, too."""
    return {**scheduled_probes(recording, own), **over_fastest(recording, own, of_any_ends(unlike_chains(20)))}
