"""Mesa: activations are kept in 8 bits, over a clip range of each head that follows its running average.

Pan, Chen, He, Liu, Cai & Zhuang, "Mesa: A Memory-saving Training Framework for Transformers" (arXiv 2111.11124), as in
the authors' custom_quant.py. Of each saved activation x, for each group h of its values (a head's):

    now      beta = min x            alpha = max x - min x
    running  beta_h <- 0.9 beta_h + 0.1 beta        alpha_h <- 0.9 alpha_h + 0.1 alpha      the first: beta, alpha
    code     q = clip(floor(255 (x - beta_h) / alpha_h + u), 0, 255)                        u uniform in [0, 1)
    back     x' = beta_h + q alpha_h / 255

The forward pass computes with x; the backward pass with x'. What lies outside of the running range is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.activation_compression.mesa.codes import Codes, followed, ranges
from techniques.activation_compression.shared.saved_tensors import Forward, Place, blocks, head_wise, packing
from techniques.shared.scaled_sum import launchable

STREAM = 11  # of the seed, for what is rounded


@dataclass
class Mesa(Technique):
    """Implements Mesa, where ``decay`` is that of the running ranges, 0 for each batch's own."""

    decay: float = 0.9

    statistics: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(
                f"decay of the running ranges must lie in [0, 1), 0 for each batch's own; not {self.decay}"
            )

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        noise = torch.Generator(run.device).manual_seed(mixed_seed(run.seed, STREAM, run.step))

        def pack(tensor: Tensor, place: Place) -> Codes:
            x = tensor.reshape(head_wise(tensor.shape, place)).contiguous()
            clip = self.follow(place.name, ranges(x))
            self.act(place)
            return Codes.of(x, clip, noise)

        def around(forward: Forward) -> AbstractContextManager[Any]:
            if not launchable(next(run.model.parameters())):
                return nullcontext()
            from techniques.activation_compression.mesa.fused import Fused

            return Fused(self, forward, noise)

        with packing(run, blocks(run.anatomy), pack, around=around):
            yield

    def follow(self, name: str, now: Tensor) -> Tensor:
        """Returns the ranges to code with, this batch's included; a tensor seen for the first time has its batch's
        own."""
        running = self.statistics.get(name)
        if running is not None and running.shape == now.shape:
            now = followed(running, now, self.decay)
        self.statistics[name] = now
        return now

    def act(self, place: Place) -> None:
        self.acts.setdefault(place.module, Act())()

    def sites(self, run: Run) -> Mapping[str, Site]:
        self.acts = {block.path: Act() for block in run.anatomy.every_block}
        return self.acts

    def state(self) -> dict[str, Any]:
        return {"statistics": self.statistics}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.statistics = dict(state["statistics"])
