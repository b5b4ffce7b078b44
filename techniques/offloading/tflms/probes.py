"""Tells what a recorded step shows of TFLMS: its transfers, and that distance alone decides what leaves."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded_probes import left_in, offloaded_probes
from techniques.offloading.tflms.technique import TFLMS
from techniques.shared.persistent_probes import unlike_chains

PLENTY = 10**9


@judged_as(offloaded_probes)
@judged(
    "beside_threshold",
    "Every value that waits longer than the threshold leaves, and no other",
    "Section 4",
    id="by_distance",
    note="values on the wrong side of some threshold, on chains of unlike blocks and the model's own",
)
@judged(
    "peak_over_budget",
    "The device's peak is within the memory limit",
    id="within_budget",
    at_most=1.0,
    kind="counted",
    note="the authors' library has no budget: its user sets how many tensors leave",
)
def probes(recording: Recording, own: TFLMS) -> Mapping[str, float]:
    """Includes those of all that offload."""
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
