"""Lists of tensors for the kernels of LARS and LAMB: every shape that takes another path through them."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK, PIECE = 2048, 512
SHAPES = [(), (1,), (0,), (3, 5), (PIECE - 1,), (PIECE + 1,), (BLOCK,), (2 * BLOCK + 77,), (64, 33)]


def random_lists(count: int, dtypes: list[torch.dtype], shapes: list[tuple[int, ...]] = SHAPES) -> list[list[Tensor]]:
    """``count`` lists of normal tensors, one of each shape."""
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for dtype in dtypes[:count]]


def misaligned(tensors: list[Tensor]) -> list[Tensor]:
    """The same values at addresses that are not multiples of 16."""
    moved = [torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape) for tensor in tensors]
    assert all(tensor.data_ptr() % 16 for tensor in moved if tensor.numel())
    return moved


def near(got: Tensor, expected: Tensor, units: float = 4) -> bool:
    """Equal to rounding: ``units`` of the dtype's epsilon, of the value or of the tensor's largest; NaN is NaN."""
    if not got.numel():
        return True
    wide = expected.double()
    finite = wide[wide.isfinite()].abs()
    room = units * torch.finfo(got.dtype).eps * (finite.max().item() if finite.numel() else 0.0)
    return torch.allclose(got.double(), wide.to(got.dtype).double(), rtol=0, atol=room, equal_nan=True)
