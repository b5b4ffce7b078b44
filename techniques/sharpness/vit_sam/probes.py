"""Checks what a recorded step shows of SAM on a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.sharpness.shared.sam_probes import sam_probes
from techniques.sharpness.vit_sam.technique import VitSam


@judged(
    "radius",
    "The weights are moved by rho in L2 norm, up along the gradient.",
    "Section 4, equation 1",
    equals=1.0,
    tolerance=1e-4,
    note="float32 weights: their rounding limits how exactly a perturbation can be applied",
)
@judged(
    "off_the_gradient",
    "All weights move along their one joint gradient: the norm is over all of them.",
    "Section 4, equation 1",
    id="one_direction",
    at_most=4.0,  # the product, the sum, and the fit of the length
)
@judged(
    "gradient_differs",
    "The second gradient is the plain loss's on the same batch, at the moved weights.",
    "Section 4, equation 1",
    id="gradient_there",
)
@judged(
    "noise_differs",
    "Both passes see the same dropout masks.",
    "the authors' flax_training.py: one random key for both passes",
    id="same_noise",
    note="the run's first step with a dropout of 0.1",
)
@judged(
    "not_restored",
    "The optimizer steps from the weights of before, to the bit.",
    "Section 4, equation 1",
    id="weights_restored",
)
@judged(
    "received_roundings",
    "The optimizer gets the second gradient and nothing of the first.",
    "Section 4, equation 1",
    id="base_step",
    at_most=2.0,
)
@judged(
    "received",
    "The second gradient is clipped as the reference's would be.",
    "Section 4, equation 1: the base optimizer's step",
    id="clipped_once",
    equals=1.0,
    tolerance=1e-5,
)
@judged(
    "statistics_off",
    "Running statistics are those of the pass at the weights themselves.",
    "the convention of implementations with batch normalisation; the paper is silent",
    id="running_statistics",
)
def probes(recording: Recording, own: VitSam) -> Mapping[str, float]:
    """Computes the same as :func:`techniques.sharpness.shared.sam_probes.sam_probes`."""
    return sam_probes(recording, own.rho, own.adaptive)
