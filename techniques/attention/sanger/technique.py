"""Implements Sanger: attention over the pairs to which a prediction from 4-bit queries and keys gives enough
probability.

Lu, Jin, Bi, Luo, Li, Wang & Liang, "Sanger: A Co-Design Framework for Enabling Sparse Attention using Reconfigurable
Architecture" (MICRO 2021), section 3:

    q', k'   q / |q|, k / |k| in integers of 4 bits: round(x s), s = 7 / mean over steps of max |x|
    S'       q' k'^T |q| |k| / sqrt(d)
    M        softmax(S') > T
    O        softmax(S over M) V               S: in full precision; M is a constant of the backward pass

A pre-trained model is fine-tuned through M and so used. The mask is then packed for the array (``packing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from techniques.attention.sanger.packing import load_balance
from techniques.attention.shared.by_blocks import ByBlocks
from techniques.attention.shared.kept_pairs import EmptyRows, Pairs, scored, softmax_over, with_empty_rows
from techniques.attention.shared.masking import KeptPairs

LARGEST = "sanger_largest"  # buffer [2]: moving means of max |q / |q|| and max |k / |k||, 0 before the first step
SEEN = "sanger_seen"  # buffer [2]: these with the step's own, until it is done
UNIFORM = 2.56  # of 1 / keys: T = 0.02 at the 128 tokens of GLUE
HIGHEST = 0.5  # of these: the only key of a row is kept
TINY = 1e-30  # a largest number of 0 divides nothing


def quantised(x: Tensor, largest: Tensor, bits: int) -> Tensor:
    """Returns ``x`` rounded to 2^bits - 1 levels of which the outermost are at +-``largest``, beyond which it is cut
    off."""
    levels = 2 ** (bits - 1) - 1
    scale = levels / largest.clamp(min=TINY)
    return (x * scale).round().clamp(-levels, levels) / scale


def predicted(pairs: Pairs, largest: Tensor, bits: int) -> Tensor:
    """Returns the predicted scores [batch, heads, queries, keys], float32; ``largest`` [2] is of unit queries and
    keys."""
    query, key = pairs.query.float(), pairs.key.float()
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1, keepdim=True).transpose(-2, -1)
    of_query, of_key = (quantised(unit(x), peak, bits) for x, peak in zip((query, key), largest, strict=True))
    return scored(of_query @ of_key.transpose(-2, -1) * lengths, pairs)


def unit(x: Tensor) -> Tensor:
    """Returns ``x`` [..., width] over the length of each of its vectors; 0 stays 0."""
    return nn.functional.normalize(x.float(), dim=-1)


def prediction_mask(pairs: Pairs, largest: Tensor, bits: int, threshold: float, empty: EmptyRows = "dense") -> Tensor:
    """Returns bool: the pairs whose predicted probability is above ``threshold``."""
    probabilities = softmax_over(predicted(pairs, largest, bits), pairs.visible.expand(pairs.shape))
    return with_empty_rows(probabilities > threshold, pairs.visible, empty)


@dataclass
class Sanger(ByBlocks, KeptPairs):
    """``threshold`` None is UNIFORM over the keys of a row: the paper's 0.02 at 128 of them. ``empty``: what a row does
    that keeps nothing: attends to all that it may, as in the authors' code, or to nothing."""

    bits: int = 4
    threshold: float | None = None
    decay: float = 0.9999
    empty: EmptyRows = "dense"
    zero_strength: ClassVar[Mapping[str, Any]] = {"threshold": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.bits <= 16:
            raise ValueError(f"a signed integer of the prediction has 2 to 16 bits, not {self.bits}")
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise ValueError(
                f"threshold is a probability in [0, 1), not {self.threshold:g}: 1 would keep nothing, 0 keeps all"
            )
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay of the moving mean is in [0, 1), not {self.decay:g}")

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        for block in anatomy(model).attending_blocks:
            like = next(block.module.parameters())
            for name in (LARGEST, SEEN):
                block.attention.module.register_buffer(name, torch.zeros(2, device=like.device))

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        threshold = min(UNIFORM / pairs.longest, HIGHEST) if self.threshold is None else self.threshold
        return prediction_mask(pairs, self.largest(layer, pairs), self.bits, threshold, self.empty)

    def largest(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        """Returns the moving means: with this pass in training, of the steps before in evaluation. The first pass fills
        them. A pass that is repeated within a step (recomputation) finds the same ones."""
        means, now = layer.get_buffer(LARGEST), torch.stack([unit(x).abs().amax() for x in (pairs.query, pairs.key)])
        moved = torch.where(means > 0, torch.lerp(now, means, self.decay), now)
        if layer.training:
            layer.get_buffer(SEEN).copy_(moved)
            return moved
        return torch.where(means > 0, means, now)

    def after_step(self, run: Run) -> None:
        for block in run.anatomy.attending_blocks if not self.is_reference else ():
            block.attention.module.get_buffer(LARGEST).copy_(block.attention.module.get_buffer(SEEN))

    def described(self, pairs: Pairs, value: Tensor, mask: Tensor) -> Mapping[str, float]:
        return {**super().described(pairs, value, mask), "load_balance": load_balance(mask)}
