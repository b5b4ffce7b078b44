"""What a recorded step shows of DFSS: that of each group of scores of a row the largest are kept, and how much of dense
attention these have in every row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.recording import Recording
from techniques.attention.dfss.technique import Dfss
from techniques.attention.shared.mask_probes import Seen, of_masks
from techniques.shared.sparse.n_of_m import packed, unpacked

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
N, M = 1, 2  # of float32


def probes(recording: Recording, own: Dfss) -> Mapping[str, float]:
    """Those of :func:`of_masks`; ``off_pattern``: groups of 2 visible scores of a row of which not 1 is kept;
    ``misplaced``: kept scores below one that is left out of their group; ``least_mass``: of any row, what dense
    attention gives to the kept pairs; ``packed_bytes``: of 16-bit scores kept 2 of 4, over those of all;
    ``lost``: kept scores that do not come back from the packed form."""
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
