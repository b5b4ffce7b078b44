"""Lets ranks start alike, and does what data parallelism does with running statistics."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup


def begin_alike(model: nn.Module, group: ProcessGroup) -> None:
    """Gives every rank the first one's parameters and buffers."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, group=group, group_src=0)


def first_rank_s_statistics(model: nn.Module, group: ProcessGroup) -> None:
    """Gives every rank the first one's running statistics, as data parallelism does."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.broadcast(buffer, group=group, group_src=0)
