"""Checks what recorded steps show of the 8-bit moments, in float64, from the paper's description of the map alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.precision.adam8bit_blockwise.technique import Adam8bit
from techniques.precision.shared.low_bit_probes import ROUNDINGS, State, blocks, dynamic_map, low_bit_steps, not_nearest
from techniques.shared.adam_moves import first_and_middle
from techniques.shared.moves import off

MAPS = {"first": dynamic_map(8, signed=True), "second": dynamic_map(8, signed=False)}


def records(run: Run, own: Adam8bit) -> bool:
    """Selects the first step, whose moments are zeros before, and the one in the middle."""
    return first_and_middle(run)


@judged(
    "state_over_least",
    "Parameters with 8-bit moments take 2 bytes and 8 a block: 2.0039 in blocks of 2048, 2.03125 in blocks of 256, "
    "against 8.",
    "Section 2; arithmetic",
    id="state_bytes",
    equals=1.0,
)
@judged(
    "not_nearest",
    "Every code is that of the map's value nearest to the moment over its block's scale.",
    "Section 2.1, equation 4",
    id="nearest",
)
@judged(
    "scale_roundings",
    "A block's scale is the largest magnitude in that block alone, so that an outlier costs no other block precision.",
    "Section 2.1",
    id="scales",
    at_most=6.0,
)
@judged(
    "step_roundings",
    "The step is 32-bit AdamW's along the decoded moments, made before they are encoded again.",
    "Section 2: dequantise, update, quantise",
    id="update",
    at_most=16.0,  # of the weight and the step: decoding, both moments, and Adam's eight operations
)
@judged(
    "misplaced",
    "Exactly the tensors of fewer than 4096 elements and the embeddings keep 32-bit moments.",
    "Section 2.3; bitsandbytes' min_8bit_size",
    id="placed",
)
def probes(recording: Recording, own: Adam8bit) -> Mapping[str, float]:
    """Includes what `low_bit_steps` says. Codes that are ``not_nearest`` are counted."""

    def decoded(state: State, weights: Tensor) -> tuple[Tensor, Tensor]:
        m, v = (
            blocks(values[state[f"{name}_codes"].long()], own.block) * state[f"{name}_scales"].double()[:, None]
            for name, values in MAPS.items()
        )
        return tuple(tensor.flatten()[: weights.numel()].view(weights.shape) for tensor in (m, v))

    def judged(state: State, m: Tensor, terms: Tensor, v: Tensor) -> Mapping[str, float]:
        wrong, scales_off, held = 0, 0.0, 0
        for (name, values), moment, size in zip(MAPS.items(), (m, v), (terms, v), strict=True):
            codes, scales = state[f"{name}_codes"], state[f"{name}_scales"]
            wanted, error, wide = blocks(moment, own.block), blocks(size, own.block), scales.double()[:, None]
            scales_off = max(scales_off, off(scales, wanted.abs().amax(1), error.amax(1)))
            inverse = torch.where(wide > 0, 1 / wide, 0.0)
            zero = int((values == 0).nonzero())
            wrong += not_nearest(blocks(codes, own.block, zero), values, wanted * inverse, ROUNDINGS * error * inverse)
            held += codes.nbytes + scales.nbytes
        least = 2 * m.numel() + 8 * math.ceil(m.numel() / own.block)
        return {"not_nearest": wrong, "scale_roundings": scales_off, "state_over_least": held / least}

    return low_bit_steps(recording, own.smallest, own.keep_embeddings, decoded, judged)
