"""Tells what a recorded step shows of Sanger: that masks are those of the 4-bit prediction, from queries and keys of
the step and the moving means before it, and that each kept pair has one place in the packed and split form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from suite.model.calls import undisturbed
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.attention.sanger.cost import layer_s
from techniques.attention.sanger.packing import load_balance, sub_rows
from techniques.attention.sanger.technique import LARGEST, Sanger, quantised
from techniques.attention.shared.kept_pairs import Pairs
from techniques.attention.shared.mask_probes import Seen, of_masks, shown

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
BITS, DECAY, WIDTH, ELEMENTS = 4, 0.9999, 64, 16  # the paper's, and its code's
GLUE = 0.02 * 128  # its threshold there, times the tokens
ROUNDING = 1e-5  # a probability this close to the threshold may be on either side


@judged(
    "misplaced",
    "Kept are the pairs to which the softmax of scores from 4-bit unit queries and keys gives more than the threshold",
    "Section 3; the authors' code",
    id="prediction",
    recipes=["classic"],
    note="beside numbers within a rounding of a boundary; a row that would keep nothing keeps all",
)
@judged(
    "means_off",
    "The scales follow a moving mean of the largest number with decay 0.9999, which the first step fills",
    "The authors' code",
    id="scales",
    at_most=1e-6,
    recipes=["classic"],
)
@judged_as(shown, "Section 3")
@judged(
    "hidden_kept",
    "No padding and no future token is kept",
    "The authors' code: the attention mask is added to the predicted scores",
    id="nothing_hidden",
    recipes=["classic"],
)
@judged(
    "gradient_roundings",
    "A step's gradients are those of attention through the masks as constants: the prediction has none",
    "The authors' code: the mask is detached",
    id="mask_is_constant",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
@judged(
    "unpacked",
    "Pack and split is a partition: each kept pair is in one sub-row of at most 16, and no other pair is",
    "Section 4",
    id="packs_every_pair_once",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "not_cut_off",
    "What lies beyond the largest number of the moving mean is cut off at the outermost level",
    "Section 3; the authors' code: quantisation clamps to 4 bits",
    id="cut_off",
    note="numbers of up to twice the largest, in 4 bits",
)
@judged(
    "off_in_evaluation",
    "In evaluation queries and keys are quantised by the moving means of training, whatever is evaluated",
    "Section 3; the authors' code: moving averages of the largest numbers",
    id="trained_means",
    note="of queries and keys as they are and of others, one of whose numbers is larger; means, relative",
)
def probes(recording: Recording, own: Sanger) -> Mapping[str, float]:
    """Includes those of :func:`of_masks`. Claims read ``sub_rows_off``, sub-rows over sum ceil(z / 16), less 1;
    ``balance_off``, the error of the load balance; ``detector_cost``, bits of a predicted product over those of one of
    16 by 16; ``modelled_layer``, the modelled time of a layer on the array at the paper's lowest density, over that of
    dense attention there."""
    trace = recording.trace
    seen, shown = of_masks(recording, own)
    paths = [block.attention.path for block in recording.run.anatomy.attending_blocks]
    means, misplaced, off = [], 0, []
    for path, call in zip(paths, seen, strict=True):
        before = trace.before.buffers[f"{path}.{LARGEST}"].double()
        now = torch.stack([_unit(x).abs().max() for x in (call.query, call.key)])
        means.append(torch.where(before > 0, DECAY * before + (1 - DECAY) * now, now))
        misplaced += _misplaced(call, means[-1], BITS)
        after = trace.after.buffers[f"{path}.{LARGEST}"].double()
        off.append(((after - means[-1]).abs().max() / means[-1].max()).item())
    rows = [mask for call in seen for mask in call.mask.flatten(0, 1)[:4]]
    return {
        **shown,
        "misplaced": misplaced,
        "means_off": max(off),
        "not_cut_off": _not_cut_off(),
        "off_in_evaluation": max(_off_in_evaluation(own, recording, seen)),
        "detector_cost": own.bits * own.bits / (16 * 16),
        "modelled_layer": layer_s(512, 0.087, 0.56) / layer_s(512, 1.0, 1.0),
        **_packed(rows),
    }


def _unit(x: Tensor) -> Tensor:
    x = x.double()
    return x / x.square().sum(-1, keepdim=True).sqrt()


def _off_in_evaluation(own: Sanger, recording: Recording, seen: Sequence[Seen]) -> Iterator[float]:
    with undisturbed(recording.run.model):
        recording.run.model.eval()
        for block, call in zip(recording.run.anatomy.every_block, seen, strict=True):
            layer = block.attention.module
            expected = layer.get_buffer(LARGEST)
            one_number = torch.zeros_like(call.query)
            one_number[..., 0] = 1.0
            for query in (call.query, one_number):
                means = own.largest(layer, Pairs(query, call.key, call.visible, bias=None, scale=call.scale))
                yield ((means - expected).abs() / expected).max().item()


def _not_cut_off() -> int:
    numbers = torch.linspace(-2, 2, 402)
    levels = quantised(numbers, torch.tensor(1.0), BITS)
    return int(((levels - (7 * numbers.double()).round().clamp(-7, 7) / 7).abs() > 1e-6).sum())


def _misplaced(call: Seen, largest: Tensor, bits: int) -> int:
    """Counts misplaced pairs, beside pairs of vectors with a number so near the middle of two levels that a rounding
    decides."""
    levels = 2 ** (bits - 1) - 1
    scaled = [_unit(x) * levels / one for x, one in zip((call.query, call.key), largest, strict=True)]
    query, key = (x.round().clamp(-levels, levels) for x in scaled)
    between = [((x - x.floor() - 0.5).abs() < 1e-4).any(-1) for x in scaled]
    lengths = call.query.double().norm(dim=-1)[..., None] * call.key.double().norm(dim=-1)[..., None, :]
    scores = query @ key.transpose(-2, -1) * largest.prod() / levels**2 * lengths * call.scale
    probability = scores.masked_fill(~call.visible, -math.inf).softmax(-1)
    threshold = min(GLUE / call.key.shape[-2], 0.5)
    expected = (probability > threshold) & call.visible
    expected |= ~expected.any(-1, keepdim=True) & call.visible
    near = (probability - threshold).abs() < ROUNDING
    unsure = (near.any(-1) | between[0])[..., None] | between[1].any(-1)[..., None, None]
    return int(((expected != call.mask) & ~unsure).sum())


def _packed(masks: list[Tensor]) -> dict[str, float]:
    lost, parts, needed, balance = 0, 0, 0, 0.0
    for mask in (*masks, _wide()):
        packed = sub_rows(mask)
        placed = torch.zeros_like(mask, dtype=torch.int64)
        for row, keys in packed:
            placed[row, list(keys)] += 1
        lost += int((placed != mask).sum()) + sum(not 1 <= len(keys) <= ELEMENTS for _, keys in packed)
        counts = [int(row[i : i + WIDTH].sum()) for row in mask for i in range(0, mask.shape[1], WIDTH)]
        full = sum(math.ceil(z / ELEMENTS) for z in counts)
        parts, needed = parts + len(packed), needed + full
        balance = max(balance, abs(load_balance(mask) - sum(counts) / (ELEMENTS * full)))
    return {"unpacked": lost, "sub_rows_off": parts / needed - 1, "balance_off": balance}


def _wide() -> Tensor:
    """Builds a mask of several vectors a row, some empty and some full, the last one short."""
    keys = torch.arange(200)
    return torch.stack([keys % (row + 1) < row % 5 * (keys // WIDTH != 1) for row in range(24)])
