"""What a recorded step shows of TFLMS: its transfers, and that distance alone decides what leaves."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded_probes import left_in, offloaded_probes
from techniques.offloading.tflms.technique import TFLMS
from techniques.shared.persistent_probes import unlike_chains

PLENTY = 10**9


def probes(recording: Recording, own: TFLMS) -> Mapping[str, float]:
    """Those of all that offload, and ``beside_threshold``: values that leave though they wait no longer than the
    threshold, or stay though they do, over all thresholds, on the model's chains and some of unlike blocks."""
    wrong = 0
    for chain in (*own.chains, *unlike_chains(5, depth=4)):
        operations = [*range(chain.depth), *reversed(range(chain.depth))]  # forward passes, then backward ones
        for threshold in range(2 * chain.depth):
            moved = left_in(TFLMS(threshold=threshold).solve(chain, PLENTY, own.link()))
            for block, stage in enumerate(chain.stages):
                waits = len(operations) - 1 - operations[::-1].index(block) - operations.index(block)
                values = [(block, item) for item in range(len(stage.saved_bytes))]
                values += [(block, None)] if stage.holds_input else []  # type: ignore[list-item]
                wrong += sum((value in moved) != (waits > threshold) for value in values)
    return offloaded_probes(recording, own) | {"beside_threshold": wrong}
