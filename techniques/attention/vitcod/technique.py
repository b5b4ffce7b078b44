"""Implements ViTCoD: masks from averaged attention, fixed for all inputs, and queries and keys through half as many
heads.

You, Sun, Shi, Yu, Zhao, Zhang, Li, Li & Lin, "ViTCoD: Vision Transformer Acceleration via Dedicated Algorithm and
Accelerator Co-Design" (HPCA 2023, arXiv 2210.09573), section IV, and the authors' code:

    first    q' = decode(encode(q)), k' likewise: over heads, h -> ceil(h / 2) -> h, linear
             L + 1e-4 sum over layers (|q - q'| + |k - k'|)
    then     A = mean over training examples of softmax(q' k'^T / sqrt(d)); each row keeps its largest entries up to
             ``information`` of its sum: one mask for each head of each layer (``masks.py``)
    rest     softmax over the mask, for all inputs alike

A pre-trained model is fine-tuned with the auto-encoders, then over the masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch, mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.model.anatomy import anatomy
from suite.model.leading import picture_row
from techniques.attention.shared.by_blocks import ByBlocks
from techniques.attention.shared.kept_pairs import Pairs, softmax_over
from techniques.attention.shared.masking import KeptPairs
from techniques.attention.shared.taking_over import try_out
from techniques.attention.vitcod.masks import informative, polarised

MASK = "vitcod_mask"  # buffer bool [heads, tokens, tokens], all True before masks are made
QUERY, KEY = "vitcod_query", "vitcod_key"  # the auto-encoders


class AutoEncoder(nn.Sequential):
    """Maps [batch, heads, tokens, width] -> the same, through ceil(heads / 2) heads."""

    def __init__(self, heads: int) -> None:
        few = -(-heads // 2)
        super().__init__(nn.Linear(heads, few), nn.Linear(few, heads))

    def forward(self, x: Tensor) -> Tensor:
        coded: Tensor = super().forward(x.movedim(1, -1))
        return coded.movedim(-1, 1)


@dataclass
class Vitcod(ByBlocks, KeptPairs):
    """``information`` is the share of average attention that a row keeps; 1 and no ``autoencoder`` is dense attention.
    Masks are made after ``first`` of the run, from ``batches`` of training data; ``weight`` is that of the
    auto-encoders' loss; a token kept by more than ``shared`` of the queries is global."""

    information: float = 0.5
    autoencoder: bool = True
    first: float = 0.5
    batches: int = 8
    weight: float = 1e-4
    shared: float = 0.25
    zero_strength: ClassVar[Mapping[str, Any]] = {"information": 1.0, "autoencoder": False}
    whole_batch: ClassVar[bool] = True  # the errors' norms

    sizes: dict[str, tuple[int, int]] | None = field(init=False, repr=False, default=None)  # while it measures
    maps: dict[str, list[Tensor]] | None = field(init=False, repr=False, default=None)  # of examples, while it averages
    errors: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)  # of this pass, by layer
    leading: int = field(init=False, repr=False, default=0)
    masked: Act = field(init=False, repr=False, default_factory=partial(Act, "run"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.information <= 1:
            raise ValueError(f"information is a share of average attention, in (0, 1], not {self.information:g}")
        if not 0 <= self.first < 1:
            raise ValueError(f"first is the share of the run before the masks, in [0, 1), not {self.first:g}")
        if self.batches < 1:
            raise ValueError(f"attention is averaged over 1 batch or more, not {self.batches}")
        if self.weight < 0 or not 0 <= self.shared < 1:
            raise ValueError(f"weight is 0 or more and shared in [0, 1), not {self.weight:g} and {self.shared:g}")

    def equip(self, model: nn.Module, run: Run) -> None:
        device = next(model.parameters()).device
        for path, (heads, tokens) in self.measured(model, run).items():
            layer = model.get_submodule(path)
            layer.register_buffer(MASK, torch.ones(heads, tokens, tokens, dtype=torch.bool, device=device))
            for name in (QUERY, KEY) if self.autoencoder else ():
                layer.add_module(name, AutoEncoder(heads).to(device))
        if run.baseline.modality == "image":
            self.leading = picture_row(anatomy(model), partial(run.trial, model)).leading

    def tried(self, model: nn.Module, run: Run) -> None:
        super().tried(model, run)
        self.errors.clear()

    def measured(self, model: nn.Module, run: Run) -> dict[str, tuple[int, int]]:
        """Returns the heads and tokens of each attention. Raises ValueError where its queries are not as many as its
        keys."""
        sizes: dict[str, tuple[int, int]] = {}
        self.sizes = sizes
        try:
            with torch.no_grad():
                try_out(anatomy(model), {}, lambda: run.trial(model))
        finally:
            self.sizes = None
        if lacking := [path for path in self.acts if path not in sizes]:
            raise ValueError(
                f"vitcod has one mask of all tokens by all tokens for a head, and {lacking[0]} has none of as many "
                "queries as keys: take a model without pooled tokens"
            )
        return sizes

    def prepared(self, layer: nn.Module, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.sizes is not None and self.now is not None:
            if query.shape[2] == key.shape[2]:
                self.sizes[self.now[0]] = query.shape[1], query.shape[2]
            return query, key
        if not self.autoencoder:
            return query, key
        coded = layer.get_submodule(QUERY)(query), layer.get_submodule(KEY)(key)
        if torch.is_grad_enabled() and self.now is not None:
            off = [(one - other).float().norm() for one, other in zip((query, key), coded, strict=True)]
            self.errors[self.now[0]] = off[0] + off[1]
        return coded

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        visible = pairs.visible.expand(pairs.shape)
        if self.sizes is not None:
            return visible
        if self.maps is not None and self.now is not None:
            self.maps[self.now[0]].append(softmax_over(pairs.scores.float(), visible).mean(0))
            return visible
        mask = layer.get_buffer(MASK)
        if mask.shape[1:] != pairs.shape[2:]:
            raise ValueError(
                f"vitcod's masks are of {mask.shape[-1]} tokens and do not fit rows of {pairs.longest} for "
                f"{pairs.shape[2]} queries: give whole inputs of one length"
            )
        return mask & visible

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if not self.errors:
            return loss
        added = torch.stack(list(self.errors.values())).sum()
        self.errors.clear()
        return loss + self.weight * added

    def after_step(self, run: Run) -> None:
        if run.step == max(1, round(self.first * run.recipe.steps)) and self.information < 1:
            self.make_masks(run)

    @torch.no_grad()
    def make_masks(self, run: Run) -> None:
        """Makes the masks of all layers from the model as it is."""
        maps: dict[str, list[Tensor]] = {path: [] for path in self.acts}
        self.maps, size = maps, run.recipe.batch_size
        run.model.eval()
        try:
            for number in range(self.batches):
                batch, _ = run.data.batch(mixed_seed(run.seed, 2), number * size, size)
                with run.autocast():
                    run.baseline.forward(run.model, {name: tensor.to(run.device) for name, tensor in batch.items()})
        finally:
            self.maps = None
            run.model.train()
        for block, of_block in zip(
            run.anatomy.attending_blocks, maps.values(), strict=True
        ):  # a replica's have other paths
            average = torch.stack(of_block).mean(0)
            block.attention.module.get_buffer(MASK).copy_(informative(average, self.information, self.leading))
        self.masked()

    def sites(self, run: Run) -> Mapping[str, Site]:
        if self.is_reference:
            return {}
        if self.autoencoder:
            run.demand_whole("vitcod adds up what the autoencoders of all blocks lose")
        mask_sites = {"makes masks": self.masked} if self.information < 1 else {}
        coders = {
            f"{block.attention.path}.{name}": block.attention.module.get_submodule(name)
            for block in run.anatomy.attending_blocks
            for name in ((QUERY, KEY) if self.autoencoder else ())
        }
        return {**super().sites(run), **coders, **mask_sites}

    def described(self, pairs: Pairs, value: Tensor, mask: Tensor) -> Mapping[str, float]:
        """Adds the share of global tokens, and of kept pairs in their columns, of the first head."""
        first = mask[0, 0]
        order, count = polarised(first, self.shared)
        columns = first[:, order[:count]].sum().item() / first.sum().item()
        return {
            **super().described(pairs, value, mask),
            "global_tokens": count / pairs.longest,
            "in_global_columns": columns,
        }
