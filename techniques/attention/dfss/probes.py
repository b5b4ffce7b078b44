"""Tells what a recorded step shows of DFSS: that of each group of scores of a row the largest are kept, and how much of
dense attention these have in every row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.attention.dfss.technique import Dfss
from techniques.attention.shared.mask_probes import Seen, of_masks
from techniques.shared.sparse.n_of_m import packed, unpacked

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
N, M = 1, 2  # of float32


@judged(
    "off_pattern",
    "Of each 2 consecutive scores of a row 1 is kept",
    "Section 3: 1:2 for float and tf32",
    id="pattern",
    recipes=["classic"],
)
@judged("misplaced", "It is the larger one", "Section 3", id="the_larger", recipes=["classic"])
@judged(
    "least_mass",
    "In every row the kept pairs have half of dense attention's probability or more",
    "Follows from section 3: the larger of two have half of their sum",
    id="at_least_half_the_mass",
    at_least=0.499999,  # 1/2, less a rounding of the choice
    recipes=["classic"],
)
@judged(
    "lost",
    "Each kept score comes back from the packed form to its place",
    "Section 3",
    id="packed_whole",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "output_off",
    "Attention is softmax(Q K^T / sqrt(d)) V in full precision over the kept pairs",
    "Section 3",
    id="exact_on_kept_pairs",
    at_most=1e-5,  # of the largest output, in float32: sums of tens of terms
    recipes=["classic"],
)
@judged(
    "hidden_kept",
    "No padding and no future token is kept",
    "This entry's: the paper's models are masked before",
    id="nothing_hidden",
    recipes=["classic"],
)
@judged(
    "gradient_roundings",
    "A step's gradients are those of attention through the masks as constants",
    "Section 3: the kept scores alone reach the softmax",
    id="mask_is_constant",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
def probes(recording: Recording, own: Dfss) -> Mapping[str, float]:
    """Includes those of :func:`of_masks`. Groups, scores and values that are off are counted. For a claim,
    ``packed_bytes`` is of 16-bit scores kept 2 of 4, over those of all."""
    seen, shown = of_masks(recording, own)
    scores = seen[0].scores
    wide = scores[..., : scores.shape[-1] // 4 * 4].to(torch.bfloat16)
    form = packed(wide, 2, 4)
    again, group = unpacked(form, 2, 4, 0.0), wide.unflatten(-1, (-1, 4))
    ordered = group.sort(-1, descending=True).values[..., :2]
    return {
        **shown,
        "off_pattern": sum(_off_pattern(call) for call in seen),
        "misplaced": sum(_misplaced(call) for call in seen),
        "least_mass": min(_least_mass(call) for call in seen),
        "packed_bytes": form.bytes / (wide.numel() * 2),
        "lost": int((again.unflatten(-1, (-1, 4)).ne(0) & again.unflatten(-1, (-1, 4)).ne(group)).sum())
        + int((form.values.unflatten(-1, (-1, 2)).sort(-1, descending=True).values != ordered).sum()),
    }


def _groups(call: Seen) -> list[slice]:
    return [slice(i, i + M) for i in range(0, call.mask.shape[-1], M)]


def _off_pattern(call: Seen) -> int:
    visible, mask = call.visible, call.mask
    return sum(
        int((mask[..., group].sum(-1) != visible[..., group].sum(-1).clamp(max=N)).sum()) for group in _groups(call)
    )


def _misplaced(call: Seen) -> int:
    scores = call.scores
    margin = 1e-5 * scores[call.visible].abs().max()  # roundings of float32
    wrong = 0
    for group in _groups(call):
        of_group, mask = scores[..., group], call.mask[..., group]
        best_left = of_group.masked_fill(mask, -torch.inf).amax(-1, keepdim=True)
        wrong += int((mask & (of_group < best_left - margin)).sum())
    return wrong


def _least_mass(call: Seen) -> float:
    rows = (call.scores.softmax(-1) * call.mask).sum(-1)
    return rows[call.visible.any(-1)].min().item()
