"""What a recorded step shows of mixed precision in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.contract.recording import Recording
from techniques.precision.amp_bf16.technique import AmpBf16
from techniques.shared.half_probes import half_probes


def probes(recording: Recording, own: AmpBf16) -> Mapping[str, float]:
    """As :func:`half_probes`, of the step's own gradients."""
    return half_probes(recording, torch.bfloat16, recording.trace.of("backward")[0].gradients)
