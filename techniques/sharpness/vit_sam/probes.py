"""What a recorded step shows of SAM on a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.sharpness.shared.sam_probes import sam_probes
from techniques.sharpness.vit_sam.technique import VitSam


def probes(recording: Recording, own: VitSam) -> Mapping[str, float]:
    """As :func:`techniques.sharpness.shared.sam_probes.sam_probes`."""
    return sam_probes(recording, own.rho, own.adaptive)
