"""Computes the blocks of pairs of masked attention that hold a kept one, and skips the others.

The mask is the technique's own, pair by pair, and so is the result, up to rounding: what changes is the work, and what
is kept for the backward pass, which follow the number of blocks (:mod:`techniques.attention.shared.block_attention`).
Predicting the mask still takes all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from techniques.attention.shared.block_attention import block_attention
from techniques.attention.shared.kept_pairs import Pairs, touched
from techniques.attention.shared.masking import MaskedAttention

Execution = Literal["pairs", "blocks"]


@dataclass
class ByBlocks(MaskedAttention):
    """Reads ``execution``: all scores are computed and masked (``pairs``), or those of the ``blocks`` that are
    needed."""

    execution: Execution = field(default="pairs", kw_only=True)

    def attend(self, pairs: Pairs, value: Tensor, mask: Tensor, dropout_p: float) -> Tensor:
        if self.execution == "pairs":
            return super().attend(pairs, value, mask, dropout_p)
        if pairs.bias is not None and pairs.bias.masked_fill(~pairs.visible, 0.0).any():
            raise ValueError(
                "this model adds biases to its scores, and blocks are computed without: leave execution at pairs"
            )
        with torch.autocast(value.device.type, enabled=False):
            output = block_attention(
                pairs.query, pairs.key, value, touched(mask), scale=pairs.scale, mask=mask, dropout_p=dropout_p
            )
        return output.to(value.dtype)
