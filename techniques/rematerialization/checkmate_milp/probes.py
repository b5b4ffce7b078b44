"""What a recorded step shows of Checkmate: recomputation that changes nothing, within the budget, and none too much."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.rematerialization.checkmate_milp.technique import CheckmateMILP
from techniques.rematerialization.shared.fastest_probe import over_fastest
from techniques.shared.persistent_probes import of_any_ends, unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes


def probes(recording: Recording, own: CheckmateMILP) -> Mapping[str, float]:
    """Those of every technique that plans; time over that of the fastest of all schedules, of the step and of plans, of
    chains whose graphs hold either end, too."""
    return {**scheduled_probes(recording, own), **over_fastest(recording, own, of_any_ends(unlike_chains(20)))}
