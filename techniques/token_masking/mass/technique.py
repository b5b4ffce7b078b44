"""Implements MASS: masked sequence to sequence pre-training. The decoder reads what it has to write, and nothing else.

Song, Tan, Qin, Lu & Liu, "MASS: Masked Sequence to Sequence Pre-training for Language Generation" (ICML 2019, arXiv
1905.02450), section 3.2. A fragment of k = m / 2 tokens from u to v is masked in the encoder's sentence x of m. The
decoder predicts it, each token from those of the fragment before it:

    encoder     x_1 ... x_{u-1}  [M] ... [M]  x_{v+1} ... x_m         m tokens
    decoder     x_{u-1} ... x_{v-1}  at the positions u ... v         k tokens
    loss        - mean log P(x_u ... x_v | fragment so far, encoder)

With the other tokens in place as [MASK]s, which nobody attends to (``decoder=all``), the decoder writes the same at
twice the cost. The model is the baseline's encoder and a decoder of the same size with cross-attention.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from suite.loop.data import Batch, Data, Transform, mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy, weight_matrix
from suite.model.calls import lacks_values, undisturbed
from techniques.token_masking.shared.masked_tokens import NO_LABEL, at_share, masks_of

Reads = Literal["fragment", "all"]
ABSENT = -1  # in place of a token that the decoder does not read
SAME = 1e-4  # of logits: over the roundings of float32


def fragments(rows: int, length: int, share: float, block: int, generator: torch.Generator) -> Tensor:
    """Draws positions int64 [rows, k], ascending: in each block of ``block`` tokens behind a row's first one, a run of
    a ``share`` of them that begins anywhere (the authors' masked_dataset.py). Raises ValueError where that is none."""
    runs = []
    for start in range(1, length, block):
        tokens = min(block, length - start)
        count = int(share * tokens)
        first = start + torch.randint(tokens - count + 1, (rows, 1), generator=generator)
        runs.append(first + torch.arange(count))
    positions = torch.cat(runs, dim=1)
    if not positions.shape[1]:
        raise ValueError(f"a share of {share} leaves no token of {length} to predict: mask more, or read longer rows")
    return positions


@dataclass(frozen=True)
class Fragments:
    """Turns raw rows to ``input_ids`` int64 [batch, 2, length], what the encoder reads and what the decoder does
    (ABSENT beside the fragment), and ``labels``: [batch, k], or [batch, length] where the decoder reads ``all``.

    ``corrupted`` makes of every token what stands in its place: the mask, a random one or itself.
    """

    corrupted: Transform
    share: float
    block: int
    reads: Reads

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        tokens = batch["input_ids"].long()
        rows, length = tokens.shape
        positions = fragments(rows, length, self.share, self.block, generator)
        shown = self.corrupted(batch, generator)["input_ids"].gather(1, positions)
        targets = tokens.gather(1, positions)
        before = torch.full_like(tokens, ABSENT).scatter(1, positions, tokens.gather(1, positions - 1))
        if self.reads == "all":
            targets = torch.full_like(tokens, NO_LABEL).scatter(1, positions, targets)
        return {"input_ids": torch.stack([tokens.scatter(1, positions, shown), before], dim=1), "labels": targets}


class Seq2Seq(nn.Module):
    """Joins ``encoder`` and ``decoder`` of rows [batch, 2, length], of which the decoder reads ``count`` tokens or
    all."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, count: int, reads: Reads, mask: int) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.count, self.reads, self.mask = count, reads, mask

    def forward(self, input_ids: Tensor) -> Any:
        """Returns outputs with ``logits`` [batch, count or length, vocabulary]."""
        source, before = input_ids.unbind(1)
        memory = self.encoder(input_ids=source).last_hidden_state
        inside = before != ABSENT
        if self.reads == "fragment":
            positions = inside.byte().argsort(dim=1, descending=True, stable=True)[:, : self.count]
            tokens = before.gather(1, positions)
            return self.decoder(input_ids=tokens, position_ids=positions, encoder_hidden_states=memory)
        tokens, mask = before.where(inside, self.mask), earlier_of(inside, memory.dtype)
        return self.decoder(input_ids=tokens, attention_mask=mask, encoder_hidden_states=memory)


def earlier_of(inside: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what is added to scores [batch, 1, length, length], so that a token sees itself and earlier ones
    ``inside``, bool [batch, length]: 0, or the lowest number."""
    length = inside.shape[1]
    seen = inside[:, None, :] & torch.ones(length, length, dtype=torch.bool, device=inside.device).tril()
    seen = seen | torch.eye(length, dtype=torch.bool, device=inside.device)
    return torch.zeros(seen.shape, dtype=dtype, device=inside.device).masked_fill(~seen, torch.finfo(dtype).min)[
        :, None
    ]


def decoder_like(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """Builds a decoder with cross-attention of ``model``'s size that reads with its embeddings, and begins as
    ``fresh``, a model like it, does; cross-attention's branch begins as large as self-attention's. Raises ValueError
    where transformers has none."""
    if not isinstance(model, PreTrainedModel) or type(model.config) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(f"transformers has no decoder like {type(model).__name__}: use an encoder of BERT's kind")
    if len(anatomy(model).stacks) > 1:
        raise ValueError(f"{type(model).__name__} has a decoder already: use an encoder of BERT's kind")
    config = copy.deepcopy(model.config)
    config.is_decoder = config.add_cross_attention = True
    config.use_cache = False
    decoder: Any = AutoModelForCausalLM.from_config(config)
    decoder.load_state_dict(fresh.state_dict(), strict=False)
    parts = anatomy(decoder)
    for own, shared in zip(parts.embeddings, anatomy(model).embeddings, strict=True):
        parts.replace(own.path, shared.module)
    decoder.tie_weights()
    with torch.no_grad():
        for block in parts.blocks:
            if len(block.branches) != 3:
                raise ValueError(f"transformers' decoder like {type(model).__name__} has no cross-attention")
            of_self, of_cross, _ = (weight_matrix(branch.module) for branch in block.branches)
            of_cross.mul_(of_self.norm() / of_cross.norm())
    return decoder


@dataclass
class Mass(Technique):
    """Masks a ``share``: of the tokens of each ``block``, in one fragment; ``decoder``: what it reads."""

    share: float = 0.5
    block: int = 64
    decoder: Reads = "fragment"
    zero_strength: ClassVar[Mapping[str, Any]] = {"decoder": "all"}  # its reference

    count: int = field(init=False, repr=False, default=0)  # tokens of a row's fragments
    mask: int = field(init=False, repr=False, default=0)
    shortened: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and self.block >= 1):
            raise ValueError(f"share lies in (0, 1] and block is 1 or more, not {self.share} and {self.block}")

    def data(self, data: Data, run: Run) -> Data:
        masks = masks_of(data)
        self.mask = masks.token
        self.count = fragments(1, masks.length, self.share, self.block, torch.Generator()).shape[1]
        transform = Fragments(at_share(data.transform, 1.0), self.share, self.block, self.decoder)
        return replace(data, transform=transform, test_transform=transform)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        setting = run.job.setting
        fresh = run.baseline.model(setting.size, run.data, setting.model).to(run.device)
        decoder = decoder_like(model, fresh).to(run.device)
        whole = Seq2Seq(model.base_model, decoder, self.count, self.decoder, self.mask)  # type: ignore[arg-type]
        anatomy(whole).set_fused_attention(run.recipe.fused_attention)
        batch, _ = run.data.batch(mixed_seed(run.seed, 2), 0, 2)
        check_alike(whole, batch["input_ids"].to(run.device))
        if self.decoder == "fragment":
            self.shortened()
        return whole

    def sites(self, run: Run) -> Mapping[str, Site]:
        blocks = {block.path: block.module for block in run.anatomy.every_block}
        return {**blocks, "shortens the decoder": self.shortened}


@torch.no_grad()
def check_alike(model: Seq2Seq, input_ids: Tensor) -> None:
    """Raises ValueError where the fragment alone and the whole row do not give equal logits: a decoder that counts
    positions by itself."""
    reads = model.reads
    logits: dict[str, Tensor] = {}
    with undisturbed(model):
        model.eval()
        for model.reads in ("fragment", "all"):
            logits[model.reads] = model(input_ids).logits
    model.reads = reads
    short, whole = logits["fragment"], logits["all"]
    if not lacks_values(whole):
        theirs = whole[input_ids[:, 1] != ABSENT].view_as(short)
        if (short - theirs).norm() > SAME * theirs.norm():
            raise ValueError(
                "the decoder makes something else of a fragment at its own positions than of the whole row with the "
                "others out of sight: it counts positions by itself; use an encoder of BERT's kind"
            )
