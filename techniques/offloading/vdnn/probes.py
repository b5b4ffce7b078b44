"""What a recorded step shows of vDNN: its transfers, and that a policy moves all of its kind."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded_probes import left_in, offloaded_probes
from techniques.offloading.vdnn.technique import VDNN
from techniques.shared.persistent_probes import unlike_chains

PLENTY = 10**9


def probes(recording: Recording, own: VDNN) -> Mapping[str, float]:
    """Those of all that offload, and ``policy_left``: values of the policies ``all`` and ``inputs`` that stay on the
    device, or others that leave, on the model's chains and on some whose blocks are unlike."""
    wrong = 0
    for chain in (*own.chains, *unlike_chains(5)):
        inputs = {(block, None) for block in range(chain.depth) if chain.stages[block].holds_input}
        items = {(block, item) for block, stage in enumerate(chain.stages) for item in range(len(stage.saved_bytes))}
        for policy, wanted in (("inputs", inputs), ("all", inputs | items)):
            moved = left_in(VDNN(policy=policy).solve(chain, PLENTY, own.link()))  # type: ignore[arg-type]
            wrong += len(wanted ^ {tuple(value) for value in moved})
    return offloaded_probes(recording, own) | {"policy_left": wrong}
