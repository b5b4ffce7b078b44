"""Implements 1-bit Adam: Adam until its second moment has settled, then momentum SGD over that, with momenta sent in
one bit.

Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang & He, "1-bit Adam: Communication Efficient Large-Scale Training with
Adam's Convergence Speed" (ICML 2021, arXiv 2102.02888), Algorithm 1; of rank n:

    warm-up, T_w steps:   Adam with the mean of the ranks' gradients
    then:                 m_n = beta1 m + (1 - beta1) g_n
                          m = mean of the m_n, signs with error feedback there and back      (`two_sided`)
                          theta = theta - eta m / (sqrt(v_{T_w}) + eps)

Adam is not linear in the gradient, so that errors of a compressed one never cancel in v; with v fixed it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import ParameterGroups
from techniques.communication.onebit_adam.optimizer import FrozenAdam
from techniques.communication.onebit_adam.two_sided import Layout, LeftOut, Memories, left_out, mean_of_signs
from techniques.communication.shared.dispatch import launchable
from techniques.communication.shared.exchange import clipped, mean_over_ranks
from techniques.communication.shared.ranks import CompressedRanks


@dataclass
class OneBitAdam(CompressedRanks):
    """Reads ``warmup``: the share of the run's steps that are Adam's (15 to 25 % in the paper). ``errors`` are one
    vector of the worker, and one of the server; on CUDA, where a kernel compresses and remembers in one pass, their
    last scales besides."""

    warmup: float = 0.15
    largest_norm: float = field(init=False, repr=False, default=0.0)
    beta1: float = field(init=False, repr=False, default=0.9)

    zero_strength: ClassVar[Mapping[str, Any]] = {"warmup": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.warmup <= 1:
            raise ValueError(f"warmup, the share of the steps before v stands still, is in (0, 1], not {self.warmup}")

    def recipe(self, recipe: Recipe) -> Recipe:
        self.largest_norm, self.beta1 = recipe.gradient_clip, recipe.beta1
        return super().recipe(recipe)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> FrozenAdam:
        return FrozenAdam(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            decay="decoupled",
            fused=recipe.fused_optimizer,
        )

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        optimizer = run.optimizer
        assert isinstance(optimizer, FrozenAdam)
        ends = max(1, round(self.warmup * run.recipe.steps))
        if self.warmup < 1 and run.step >= ends and not optimizer.frozen:
            optimizer.freeze(run.step)
        if not optimizer.frozen:
            return mean_over_ranks(gradients, run.group)
        states = {
            name: optimizer.state[trained_parameter] for name, trained_parameter in run.trained_parameters().items()
        }
        momenta = [states[name]["first_moment"] for name in gradients]
        own = clipped(gradients, self.largest_norm, self.beside) if self.largest_norm else gradients
        moved = [m.lerp(g.to(m.dtype), 1 - self.beta1) for m, g in zip(momenta, own.values(), strict=True)]
        for momentum, mean in zip(momenta, self.mean(moved, run), strict=True):
            momentum.copy_(mean.view_as(momentum))
        return gradients  # what a step takes is the momentum

    def mean(self, tensors: list[Tensor], run: Run) -> list[Tensor]:
        """Returns the ranks' mean in one bit an entry, flat."""
        layout = Layout(tuple(tensor.numel() for tensor in tensors), self.ranks)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        if not self.errors:
            self.errors = {"worker": flat.new_zeros(layout.padded), "server": flat.new_zeros(layout.part)}
        x = torch.nn.functional.pad(flat, (0, layout.padded - len(flat)))
        mean = mean_of_signs(x, self._memories(x, layout, run), layout, run.group)
        return list(mean[: len(flat)].split(layout.lengths))

    def _memories(self, x: Tensor, layout: Layout, run: Run) -> Memories:
        """Returns the memories, of which the kernels' remember scales beside ``errors``, which are then what was
        wanted; none, or zeros, at first."""
        lengths = {"worker": layout.whole, "server": [count for _, count in layout.pieces(run.rank)]}
        if not launchable(x):
            for side in lengths.keys() & {name.removesuffix("_scales") for name in self.errors if "_" in name}:
                memory, scales = self.errors[side], self.errors.pop(f"{side}_scales")  # of a run on CUDA
                memory.copy_(left_out(memory, scales, lengths[side]))
            return LeftOut(self.errors["worker"], self.errors["server"])
        from techniques.communication.onebit_adam import kernel

        for side, every in lengths.items():
            self.errors.setdefault(f"{side}_scales", x.new_zeros(len(every)))
        return kernel.WithScales(**self.errors)
