"""Tells what recorded steps show of ZeRO-Offload: AdamW's steps to the bit, what the device keeps, what crosses the
link.

The expected steps are torch's own AdamW's, after torch's clipping, on the recorded gradients. Half precision and the
delayed update are other settings: each is a short run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.meters.state import gradient_bytes, parameter_bytes, parameter_count, state_bytes
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.offloading.shared.host_adam import HostAdamW
from techniques.offloading.shared.host_moves import changed, waiting_gradients
from techniques.offloading.zero_offload.technique import ZeroOffload

STEPS = 3  # before the first, AdamW knows of nothing


def records(run: Run, own: ZeroOffload) -> bool:
    """Tells whether it is one of the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged(
    "changed",
    "Each step is AdamW's on the device, to the bit",
    "Section 4: the host updates the same float32 states",
    id="same_steps",
    note="the first steps, float32, no delay",
)
@judged(
    "changed_in_half",
    "In half precision each step is that of AdamW on float32 masters, rounded, to the bit",
    "Section 3: mixed-precision training",
    id="same_steps_in_half",
    note="bfloat16 parameters and gradients",
)
@judged(
    "changed_when_late",
    "With the delayed update, parameters are those of one update before, to the bit, and no more",
    "Section 5.2: one-step delayed parameter update",
    id="delayed_by_one",
    note="delayed after the first step",
)
@judged(
    "host_bytes",
    "The host holds master weights and moments (12 bytes a parameter) and the gradients (2)",
    "Section 3.4, table 1: 12 + 2",
    id="the_host_holds_the_rest",
    equals=16.0,
    kind="counted",
    note="half precision; the paper's 14, and 2 more bytes for the rounded parameters on their way back",
)
def probes(recording: Recording, own: ZeroOffload) -> Mapping[str, float]:
    """Claims read, per parameter and in half precision, ``device_bytes`` of parameters, gradients and state between
    steps, ``bytes_down`` to the device in a step and ``bytes_up`` from it; and ``waiting``, the most gradients on the
    device when another one arrives. ``host_bytes`` is the most."""
    half = recording.twin("zero_offload:half=true", steps=STEPS)
    waiting = waiting_gradients(half.run.model)
    half.train(STEPS - 1)
    run = half.run
    assert isinstance(run.optimizer, HostAdamW)
    tier = run.optimizer.tier
    down, up = tier.bytes_in, tier.bytes_out
    half.train(1)
    late = recording.twin("zero_offload:delay_after=1", steps=STEPS)
    late.train(STEPS)
    trained = sum(trained_parameter.numel() for trained_parameter in run.trained_parameters().values())
    on_device = parameter_bytes(run.model) + gradient_bytes(run.model) + state_bytes(run.optimizer)
    return {
        "changed": changed(recording),
        "changed_in_half": changed(half),
        "changed_when_late": changed(late, delay_after=1),
        "device_bytes": on_device / parameter_count(run.model),
        "host_bytes": tier.peak_bytes / trained,
        "bytes_down": (tier.bytes_in - down) / trained,
        "bytes_up": (tier.bytes_out - up) / trained,
        "waiting": max(waiting),
    }
