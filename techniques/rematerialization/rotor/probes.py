"""What a recorded step shows of rotor: that it ran as planned, and that no persistent schedule is faster."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.rematerialization.rotor.technique import Rotor
from techniques.shared.persistent_probes import beside_rivals, of_any_ends, unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes


def probes(recording: Recording, own: Rotor) -> Mapping[str, float]:
    """Those of all that plan; ``time_over_best``: the solver's time over that of the fastest persistent schedule (of
    deep stacks: of the fastest segments), at every budget at which that one changes, and ``plan_over_budget``: its
    predicted peak over the budget there; the largest of the model's chains and of some whose blocks are unlike, with
    graphs that hold either end."""
    chains = [*own.chains, *unlike_chains(), *of_any_ends(unlike_chains())]
    beside = [beside_rivals(lambda chain, budget: own.solve(chain, budget, None), chain) for chain in chains]
    return scheduled_probes(recording, own) | {
        "time_over_best": max(time for time, _ in beside),
        "plan_over_budget": max(peak for _, peak in beside),
    }
