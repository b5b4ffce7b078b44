"""Implements ELSA: the keys whose hash is near a query's, by an angle that is estimated from signs of random
projections.

Ham, Lee, Seo, Kim, Choi, Jung & Lee, "ELSA: Hardware-Software Co-design for Efficient, Lightweight Self-Attention
Mechanism in Neural Networks" (ISCA 2021), section III:

    h(x)    sign(H x), k = d bits; H orthogonal, a Kronecker product of small matrices (``hashing.py``)
    theta   max(0, pi / k * hamming(h(q), h(k_j)) - bias)
    keep    |k_j| cos(theta) > t max_j |k_j|                 |q| is the same on both sides
    t       on training data, mean over queries of the least q k_j / (|q| max |k|) among keys of softmax above p / n

A trained model is approximated; t is all that is learned, for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from techniques.attention.elsa.hashing import hamming, quantile_bias, signs
from techniques.attention.shared.by_blocks import ByBlocks
from techniques.attention.shared.kept_pairs import Pairs, or_best, softmax_over
from techniques.attention.shared.masking import KeptInEvaluation

THRESHOLD = "elsa_threshold"  # buffer, a scalar: t of the layer


def longest_keys(pairs: Pairs) -> Tensor:
    """Returns max |k| over the keys that each query sees [batch, heads, queries, 1], so that none knows of the future;
    0 where it sees none."""
    lengths = pairs.key.float().norm(dim=-1)[..., None, :].expand(pairs.shape)
    return lengths.masked_fill(~pairs.visible, 0.0).amax(-1, keepdim=True)


def estimates(distance: Tensor, pairs: Pairs, bias: float) -> Tensor:
    """Computes |k_j| cos(theta) over max |k| [batch, heads, queries, keys], of Hamming distances."""
    theta = (math.pi / pairs.query.shape[-1] * distance - bias).clamp(min=0)
    lengths = pairs.key.float().norm(dim=-1)[..., None, :]
    return theta.cos() * lengths / longest_keys(pairs).clamp(min=torch.finfo(torch.float32).tiny)


def farthest(pairs: Pairs, threshold: float, bias: float) -> Tensor:
    """Makes the same test in integers [batch, heads, queries, keys]: a key is kept where its Hamming distance is at
    most this, -1 where it never is."""
    lengths = pairs.key.double().norm(dim=-1)[..., None, :]
    ratio = threshold * longest_keys(pairs).double() / lengths.clamp(min=torch.finfo(torch.float64).tiny)
    angle = ratio.clamp(-1, 1).arccos() + bias
    return torch.where(ratio < 1, (angle * pairs.query.shape[-1] / math.pi).floor(), -1.0).int()


def least_scores(pairs: Pairs, p: float) -> Tensor:
    """Returns, of each query that sees a key, the least normalised score q k / (|q| max |k|) among the keys to which
    softmax gives more than p / n, n being the keys that it sees; the best key is among them, whatever p."""
    visible = pairs.visible.expand(pairs.shape)
    probability = softmax_over(pairs.scores.float(), visible)
    best = probability.amax(-1, keepdim=True)
    relevant = (probability > torch.minimum(p / visible.sum(-1, keepdim=True), best * 0.999)) & visible
    products = pairs.query.float() @ pairs.key.float().transpose(-2, -1)
    unit = pairs.query.float().norm(dim=-1, keepdim=True) * longest_keys(pairs)
    normalised = products / unit.clamp(min=torch.finfo(torch.float32).tiny)
    return normalised.masked_fill(~relevant, math.inf).amin(-1)[visible.any(-1)]


@dataclass
class Elsa(ByBlocks, KeptInEvaluation):
    """``p``: the larger, the fewer keys; 0 is dense attention. ``bias`` None is the quantile of the model's own width.
    ``batches`` of training data set the thresholds."""

    p: float = 1.0
    bias: float | None = None
    batches: int = 2
    zero_strength: ClassVar[Mapping[str, Any]] = {"p": 0.0}

    learned: dict[str, list[Tensor]] | None = field(init=False, repr=False, default=None)  # by layer, while it learns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p < 0:
            raise ValueError(f"p is a multiple of uniform attention's probability, 0 or more, not {self.p:g}")
        if self.batches < 1:
            raise ValueError(f"thresholds are learned from 1 batch or more, not {self.batches}")

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        visible = pairs.visible.expand(pairs.shape)
        if self.learned is not None and self.now is not None:
            self.learned[self.now[0]].append(least_scores(pairs, self.p))
            return visible
        distance = hamming(signs(pairs.query), signs(pairs.key))
        estimated = estimates(distance, pairs, self.bias_of(pairs.query.shape[-1]))
        return or_best((estimated > layer.get_buffer(THRESHOLD)) & visible, estimated, visible)

    def tried(self, model: nn.Module, run: Run) -> None:
        """Tries the model as its thresholds are learned: there are none yet."""
        self.learned = {path: [] for path in self.acts}
        try:
            super().tried(model, run)
        finally:
            self.learned = None

    def bias_of(self, width: int) -> float:
        return quantile_bias(width) if self.bias is None else self.bias

    @torch.no_grad()
    def calibrate(self, model: nn.Module, run: Run) -> None:
        learned: dict[str, list[Tensor]] = {path: [] for path in self.acts}
        self.learned = learned
        size = run.recipe.batch_size
        try:
            for number in range(self.batches):
                batch, _ = run.data.batch(mixed_seed(run.seed, 2), number * size, size)
                with run.autocast():
                    run.baseline.forward(model, {name: tensor.to(run.device) for name, tensor in batch.items()})
        finally:
            self.learned = None
        for block in anatomy(model).attending_blocks:
            threshold = torch.cat(learned[block.attention.path]).mean()
            block.attention.module.register_buffer(THRESHOLD, threshold)
