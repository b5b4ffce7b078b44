"""What a recorded step shows of SAM."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.sharpness.sam.technique import Sam
from techniques.sharpness.shared.sam_probes import sam_probes


def probes(recording: Recording, own: Sam) -> Mapping[str, float]:
    """As :func:`techniques.sharpness.shared.sam_probes.sam_probes`."""
    return sam_probes(recording, own.rho, own.adaptive)
