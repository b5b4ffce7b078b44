"""Tells which tensors go to the folder's Triton kernels, the others to torch's operators. For all of the folder that
have kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def launchable(x: Tensor) -> bool:
    """Tells whether kernels take ``x``: float32 on a CUDA device, laid out in one piece, of less than 2^31 entries."""
    return x.is_cuda and x.dtype == torch.float32 and x.is_contiguous() and 0 < x.numel() < 2**31
