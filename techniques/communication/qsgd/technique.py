"""Implements QSGD: each entry rounded at random to one of a few levels of its bucket's norm, so that the mean stays
right.

Alistarh, Grubic, Li, Tomioka & Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"
(NeurIPS 2017, arXiv 1610.02132), section 3.1; of a bucket v of d entries and s levels:

    Q(v)_i = ||v|| sgn(v_i) l_i / s        l_i = floor(s |v_i| / ||v|| + u_i)        u_i uniform in [0, 1)

    E Q(v) = v        E ||Q(v) - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2

Unbiased, so that nothing need be remembered. Sign and level take ``bits`` bits together: s = 2^(bits - 1) - 1. The
norm takes 4 bytes a bucket. Elias codes, which the paper puts around the levels, are left out. The paper's experiments
put a bucket's largest magnitude in the place of its norm (section 4), ``scale=max``: less noise, as many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from suite.loop.data import generator
from suite.loop.run import Run
from techniques.communication.shared.exchange import Message, gathered
from techniques.communication.shared.ranks import CompressedRanks
from techniques.shared.packed import from_bytes, in_bytes, on_device

WIDTHS = (2, 4, 8)
Scale = Literal["norm", "max"]
"""Of a bucket: its L2 norm, or its largest magnitude."""
ORDERS: dict[Scale, float] = {"norm": 2.0, "max": torch.inf}


def levels_of(bits: int) -> int:
    """Returns the highest level s that a sign and ``bits`` - 1 bits can name; level 0 is one of them."""
    return 2 ** (bits - 1) - 1


def quantized(x: Tensor, bits: int, bucket: int, noise: Tensor, scale: Scale = "norm") -> tuple[Tensor, Tensor]:
    """Scales of the buckets of flat ``x`` [n], float32 [ceil(n / bucket)], and codes of sign and level, ``bits`` each:
    uint8 [ceil(n bits / 8)]. ``noise`` [n] is uniform in [0, 1)."""
    highest = levels_of(bits)
    buckets, us = (pad(tensor, (0, -len(x) % bucket)).view(-1, bucket) for tensor in (x, noise))
    scales = torch.linalg.vector_norm(buckets, ord=ORDERS[scale], dim=1)
    scaled = buckets.abs() * torch.where(scales > 0, highest / scales, 0.0)[:, None]
    levels = (scaled + us).floor_().nan_to_num_(0.0).clamp_(max=highest).to(torch.uint8)
    codes = levels | ((buckets < 0).to(torch.uint8) << (bits - 1))
    return scales, in_bytes(codes.view(1, -1)[:, : len(x)], bits)[0]


def dequantized(scales: Tensor, codes: Tensor, bits: int, bucket: int, length: int) -> Tensor:
    """Returns Q(v), float32 [length], from what :func:`quantized` gives."""
    codes = from_bytes(codes.view(1, -1), bits, length)[0]
    levels = (codes & levels_of(bits)).float()
    signed = torch.where(codes > levels_of(bits), -levels, levels)
    buckets = pad(signed, (0, -length % bucket)).view(-1, bucket) * (scales / levels_of(bits))[:, None]
    return buckets.view(-1)[:length]


@dataclass
class QSGD(CompressedRanks):
    """Takes ``bits`` for the sign and the level of an entry (2, 4, 8); ``bucket`` entries share a ``scale``."""

    bits: int = 4
    bucket: int = 512
    scale: Scale = "norm"
    noise: torch.Generator = field(init=False, repr=False, default_factory=torch.Generator)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in WIDTHS:
            raise ValueError(f"sign and level are packed in {', '.join(map(str, WIDTHS))} bits, not in {self.bits}")
        if self.scale not in ORDERS:
            raise ValueError(f"a bucket's scale is one of {', '.join(ORDERS)}, not {self.scale}")
        if self.bucket < 1:
            raise ValueError(f"a bucket has 1 entry or more, not {self.bucket}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        self.noise = generator(run.seed, 3, run.rank)  # independent on every rank: errors average out
        return model

    def compress(self, x: Tensor) -> Message:
        noise = torch.rand(x.numel(), generator=on_device(self.noise, x.device), device=x.device)
        return quantized(x.reshape(-1), self.bits, self.bucket, noise, self.scale)

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        totals = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        for theirs in gathered([self.compress(gradient) for gradient in gradients.values()], run.group):
            for total, (scales, codes) in zip(totals.values(), theirs, strict=True):
                total += dequantized(scales, codes, self.bits, self.bucket, total.numel()).view_as(total)
        return {name: total.div_(self.ranks) for name, total in totals.items()}

    def state(self) -> dict[str, Any]:
        return super().state() | {"noise": self.noise.get_state()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        super().restore(state, run)
        self.noise.set_state(state["noise"])
