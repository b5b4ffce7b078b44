"""Makes Mesa's codes: 8 bits over a group's clip range, rounded up or down at random; on a GPU one kernel makes them
and one reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from techniques.shared.scaled_sum import launchable

LEVELS = 255  # steps of an 8-bit code
KERNEL_DTYPES = frozenset({torch.float32, torch.bfloat16})


def ranges(x: Tensor) -> Tensor:
    """Computes beta and alpha of each group, float32 [2, groups], of ``x`` [outer, groups, inner]."""
    low, high = x.amin((0, 2)), x.amax((0, 2))
    return torch.stack([low, high - low]).float()


def followed(running: Tensor, now: Tensor, decay: float) -> Tensor:
    """Returns the running average after one more batch."""
    return decay * running + (1 - decay) * now


def scales(clip: Tensor) -> Tensor:
    """Returns the levels to a unit of x, [groups]; 0 where the range is."""
    return torch.where(clip[1] > 0, LEVELS / clip[1], 0.0)


def encode(x: Tensor, clip: Tensor, noise: torch.Generator) -> Tensor:
    """Writes uint8 codes of ``x`` [outer, groups, inner] over ``clip`` [2, groups], rounded up or down at random."""
    u = torch.rand(x.shape, generator=noise, device=x.device)
    return (x - clip[0, :, None]).mul_(scales(clip)[:, None]).add_(u).floor_().clamp_(0, LEVELS).to(torch.uint8)


def decode(codes: Tensor, clip: Tensor) -> Tensor:
    """Returns what codes stand for, float32 in their shape."""
    low, width = clip[:, :, None]
    return codes * (width / LEVELS) + low


@dataclass(frozen=True, eq=False)
class Codes:
    """Holds a tensor in 8 bits: its codes, and the ranges that they were made with. On a GPU each way is one kernel."""

    codes: Tensor
    clip: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor, clip: Tensor, noise: torch.Generator) -> Codes:
        """Makes the codes of ``x``, which is [outer, groups, inner]."""
        if launchable(x):
            from techniques.activation_compression.mesa import codes_kernel as kernel

            seed = torch.randint(2**31 - 1, (1,), generator=noise, device=x.device, dtype=torch.int32)
            codes = kernel.encode(x, torch.stack([clip[0], scales(clip)]), seed)
        else:
            codes = encode(x, clip, noise)
        return cls(codes, clip, x.dtype)

    def numbers(self) -> Tensor:
        if launchable(self.clip) and self.dtype in KERNEL_DTYPES:
            from techniques.activation_compression.mesa import codes_kernel as kernel

            table = torch.stack([self.clip[0], self.clip[1] / LEVELS])
            return kernel.decode(self.codes, table, self.dtype).flatten()
        return decode(self.codes, self.clip).to(self.dtype).flatten()
