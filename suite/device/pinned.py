"""Copies from the host to a device for which the host does not wait.

Pinned memory is taken on the thread that copies: another thread's current device may be another GPU, on which it would
make a context. torch's allocator gives none of it out again before the copies made from it are done.
"""

from __future__ import annotations

import torch
from torch import Tensor


def staged(host: Tensor, device: torch.device) -> Tensor:
    """Returns ``host``, a CPU tensor, in memory from which ``device`` copies while the host goes on."""
    return host.pin_memory() if device.type == "cuda" else host


def copied(host: Tensor, device: torch.device) -> Tensor:
    """Returns ``host``, a CPU tensor, on ``device``; itself where that is the CPU."""
    return staged(host, device).to(device, non_blocking=True)
