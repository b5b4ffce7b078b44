"""Checks what recorded steps show of the 4-bit moments, in float64, from the paper's description alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.precision.adam4bit_rank1.technique import Adam4bit
from techniques.precision.shared.low_bit_probes import ROUNDINGS, State, blocks, dynamic_map, low_bit_steps, not_nearest
from techniques.shared.adam_moves import first_and_middle
from techniques.shared.moves import off

FIRST, GROUP = dynamic_map(4, signed=True), 128
SECOND = torch.linspace(0, 1, 17, dtype=torch.float64)[1:]


def records(run: Run, own: Adam4bit) -> bool:
    """Selects the first step, whose moments are zeros before, and the one in the middle."""
    return first_and_middle(run)


@judged(
    "state_over_least",
    "A matrix of n rows and m columns takes 1 + 4/128 + 4 (n + m) / (n m) bytes a parameter, against 8.",
    "Sections 3 and 4.2; arithmetic",
    id="state_bytes",
    equals=1.0,
)
@judged(
    "not_nearest", "Every code is that of the value nearest to the moment over its scale.", "Section 2.2", id="nearest"
)
@judged(
    "scale_roundings",
    "Scales are the largest of a group of 128, of a row, of a column.",
    "Sections 3 and 4.2",
    id="scales",
    at_most=6.0,
)
@judged(
    "second_zeros",
    "No second moment decodes to zero.",
    "Section 4.1",
    id="no_zero",
    note="of rows and columns that are not all zero",
)
@judged(
    "step_roundings",
    "The step is 32-bit AdamW's along the decoded moments, made before they are encoded again.",
    "Algorithm 1",
    id="update",
    at_most=16.0,
)
@judged(
    "misplaced",
    "Exactly vectors, tensors of at most 4096 elements and embeddings keep 32-bit moments.",
    "Section 5; the authors' code",
    id="placed",
)
def probes(recording: Recording, own: Adam4bit) -> Mapping[str, float]:
    """Includes what `low_bit_steps` says. Codes that are ``not_nearest`` are counted, and elements that are
    ``second_zeros`` beside some in their row and column that are not."""

    def decoded(state: State, weights: Tensor) -> tuple[Tensor, Tensor]:
        count = weights.numel()
        m = blocks(FIRST[halves(state["first_codes"], count)], GROUP) * state["first_scales"].double()[:, None]
        return m.flatten()[:count].view(weights.shape), second(state, count).view(weights.shape)

    def judged(state: State, m: Tensor, terms: Tensor, v: Tensor) -> Mapping[str, float]:
        count, matrix = m.numel(), v.flatten(1)
        wanted, error = blocks(m, GROUP), blocks(terms, GROUP)
        scales, rank1 = state["first_scales"].double()[:, None], scales_of(state)
        inverse, inverse_v = torch.where(scales > 0, 1 / scales, 0.0), torch.where(rank1 > 0, 1 / rank1, 0.0)
        first_codes = blocks(halves(state["first_codes"], count), GROUP, int((FIRST == 0).nonzero()))
        wrong = not_nearest(first_codes, FIRST, wanted * inverse, ROUNDINGS * error * inverse)
        second_codes = halves(state["second_codes"], count).view(matrix.shape)
        over = matrix * inverse_v
        wrong += not_nearest(second_codes[rank1 > 0], SECOND, over[rank1 > 0], ROUNDINGS * over[rank1 > 0])
        scales_off = max(
            off(state["first_scales"], wanted.abs().amax(1), error.amax(1)),
            off(state["second_rows"], matrix.amax(1), matrix.amax(1)),
            off(state["second_columns"], matrix.amax(0), matrix.amax(0)),
        )
        held = sum(value.nbytes for name, value in state.items() if name.startswith(("first_", "second_")))
        least = 2 * math.ceil(count / 2) + 4 * (math.ceil(count / GROUP) + sum(matrix.shape))
        return {
            "not_nearest": wrong,
            "scale_roundings": scales_off,
            "second_zeros": int((second(state, count).view(matrix.shape)[rank1 > 0] == 0).sum()),
            "state_over_least": held / least,
        }

    return low_bit_steps(recording, own.smallest, own.keep_embeddings, decoded, judged, matrices=True)


def halves(pairs: Tensor, count: int) -> Tensor:
    """Returns the codes in the low and the high half of each byte, int64 [count]."""
    return torch.stack([pairs.long() % 16, pairs.long() // 16], 1).flatten()[:count]


def scales_of(state: State) -> Tensor:
    return torch.minimum(state["second_rows"].double()[:, None], state["second_columns"].double()[None, :])


def second(state: State, count: int) -> Tensor:
    return SECOND[halves(state["second_codes"], count)] * scales_of(state).flatten()
