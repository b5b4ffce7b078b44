"""Implements 3ML: mask more, and mask later. A masked language model's first blocks never see a [MASK].

Liao, Thulke, Hewavitharana, Ney & Monz, "Mask More and Mask Later: Efficient Pre-training of Masked Language Models by
Disentangling the [MASK] Token" (Findings of EMNLP 2022, arXiv 2211.04898), 3ML_self: a [MASK] only says where a token
is missing, which the last layers need to know alone. Of T tokens n are masked:

    tokens that are not masked, each at its own position    [B, T - n, d]    through the first blocks
    + [MASK] and its position                               [B, T, d]        through the last

A [MASK] is then cheap, so half of the tokens are chosen. As in RoBERTa, of these 80 % are masked, and the others stay
in sight, as they are or as random ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch, Data, Transform, mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from techniques.token_masking.mlm_mask_later.late_tokens import LateTokens
from techniques.token_masking.shared.masked_tokens import NO_LABEL, at_share, masks_of


def evened(masked: Batch, original: Tensor, token: int, count: int, generator: torch.Generator) -> Batch:
    """Returns the masked batch with exactly ``count`` mask tokens in each row. Where a row has more, some of them are
    shown as they were; where it has fewer, others of its chosen tokens are hidden."""
    shown, chosen = masked["input_ids"], masked["labels"] != NO_LABEL
    hidden = chosen & (shown == token)
    order = torch.rand(shown.shape, generator=generator) + (~hidden).float()  # those that are hidden come first
    first = order.masked_fill(~chosen, torch.inf).topk(count, dim=1, largest=False).indices
    return masked | {"input_ids": torch.where(hidden, original, shown).scatter(1, first, token)}


@dataclass(frozen=True)
class EvenMasks:
    """Wraps a transform that makes masked batches of raw rows, and :func:`evened`."""

    transform: Transform
    token: int
    count: int

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        masked = self.transform(batch, generator)
        return evened(masked, batch["input_ids"].long(), self.token, self.count, generator)


@dataclass
class MaskLater(Technique):
    """Masks at a ``rate``: the share of tokens to predict in training (validation and test have the baseline's own
    masks); ``hidden``: the share of these that become [MASK]; ``late``: how many of the last blocks see those, at most
    all but one, or None for all, so that there are more masks and nothing else.
    """

    rate: float = 0.5
    hidden: float = 0.8
    late: int | None = 2
    zero_strength: ClassVar[Mapping[str, Any]] = {"rate": 0.0}

    token: int = field(init=False, repr=False, default=0)
    count: int = field(init=False, repr=False, default=0)  # of mask tokens in a row
    early: int = field(init=False, repr=False, default=0)  # blocks
    masked: Act = field(init=False, repr=False, default_factory=Act)
    joined: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(
                f"rate, the share of tokens to predict, lies in (0, 1), or is 0 to do nothing: {self.rate}"
            )
        if not 0 < self.hidden <= 1:
            raise ValueError(f"hidden is a share in (0, 1], not {self.hidden}")
        if self.late is not None and self.late < 1:
            raise ValueError(f"late counts blocks, 1 or more, or is none for all, not {self.late}")

    def data(self, data: Data, run: Run) -> Data:
        if self.is_reference:
            return data
        transform = at_share(data.transform, self.rate)
        masks = masks_of(replace(data, transform=transform))
        if masks.labels is None:
            raise ValueError("rows have unlike numbers of labels, and could not be gathered: mask equally many in each")
        self.token, self.count = masks.token, round(self.hidden * masks.labels)
        if not 0 < self.count < masks.length:
            raise ValueError(f"rate {self.rate} hides {self.count} of {masks.length} tokens: hide one, and leave one")
        self.masked()
        own = data.test_transform or data.transform
        return replace(data, transform=EvenMasks(transform, self.token, self.count), test_transform=own)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.recipe.compile:
            raise ValueError("mlm_mask_later hooks into every block, which torch.compile cannot: use the recipe modern")
        parts = anatomy(model)
        if len(parts.stacks) > 1:
            raise ValueError(f"{type(model).__name__} has {len(parts.stacks)} stacks of blocks: this is for an encoder")
        if parts.depth < 2:
            raise ValueError(f"{type(model).__name__} has one block, before which no other can do without masks")
        self.early = 0 if self.late is None else max(1, parts.depth - self.late)
        if self.early:
            late = LateTokens(self.token, self.count, self.early, self.joined)
            late.attach(model, parts.blocks)
            batch, _ = run.data.batch(mixed_seed(run.seed, 2), 0, 2)
            few = {name: tensor.to(run.device) for name, tensor in batch.items()}
            late.check(model, lambda: run.baseline.forward(model, few))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        blocks: dict[str, Site] = {block.path: block.module for block in run.anatomy.blocks}
        return {**blocks, "masks more": self.masked, **({"appends masks": self.joined} if self.early else {})}
