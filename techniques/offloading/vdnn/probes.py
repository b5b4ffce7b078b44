"""Tells what a recorded step shows of vDNN: its transfers, and that a policy moves all of its kind."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded_probes import left_in, offloaded_probes
from techniques.offloading.vdnn.technique import VDNN
from techniques.shared.persistent_probes import unlike_chains

PLENTY = 10**9


@judged_as(offloaded_probes)
@judged(
    "policy_left",
    "A policy moves all of its kind: every input, or all that a backward pass needs",
    "Section 3",
    id="policy_whole",
    note="values of the policies all and inputs that a plan leaves on the device, on chains of unlike blocks",
)
@judged("out_beside_plan", "The chosen values leave, and no other", id="moves_as_planned", kind="counted")
def probes(recording: Recording, own: VDNN) -> Mapping[str, float]:
    """Includes those of all that offload."""
    wrong = 0
    for chain in (*own.chains, *unlike_chains(5)):
        inputs = {(block, None) for block in range(chain.depth) if chain.stages[block].holds_input}
        items = {(block, item) for block, stage in enumerate(chain.stages) for item in range(len(stage.saved_bytes))}
        for policy, wanted in (("inputs", inputs), ("all", inputs | items)):
            moved = left_in(VDNN(policy=policy).solve(chain, PLENTY, own.link()))  # type: ignore[arg-type]
            wrong += len(wanted ^ {tuple(value) for value in moved})
    return offloaded_probes(recording, own) | {"policy_left": wrong}
