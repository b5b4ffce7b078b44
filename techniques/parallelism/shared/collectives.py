"""Implements reduce-scatter and all-gather of flat tensors, at the volume that papers count: (N - 1) / N of the tensor
per rank.

gloo's own reduce-scatter sends as much as its all-reduce does, twice that. An all-to-all and a local sum send the ideal
volume. They go piece by piece with several pieces in flight: gloo sends and receives in turn within one collective, so
that one alone leaves 40 % of a link unused, and sixteen 3 %. Other backends do it natively.

All ranks call each function together, with tensors of equal size. For use in this category and in gradient compression.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

PIECES = 16
LEAST_PIECE_BYTES = 1 << 16  # of the whole tensor; what is smaller waits for the link's delay, not for its rate
IN_FLIGHT = 4  # gloo works at two at once; each piece is in memory twice

Finish = Callable[[], Tensor]


def reduce_scatter_mean(flat: Tensor, group: ProcessGroup) -> Tensor:
    """Computes this rank's part of the mean over N ranks of ``flat`` [N * shard] of a floating type; returns [shard] of
    that type. Half precision is added up in float32."""
    if dist.get_backend(group) != "gloo":
        return begin_reduce_scatter_mean(flat, group)()
    rows = flat.view(group.size(), flat.numel() // group.size())
    shard = flat.new_empty(rows.shape[1])
    flying: deque[tuple[Tensor, Finish]] = deque()
    for start, end in _pieces(flat, group.size()):
        part = flat if end - start == len(shard) else rows[:, start:end].flatten()
        flying.append((shard[start:end], begin_reduce_scatter_mean(part, group)))
        if len(flying) == IN_FLIGHT:
            _land(flying)
    while flying:
        _land(flying)
    return shard


def begin_reduce_scatter_mean(flat: Tensor, group: ProcessGroup) -> Finish:
    """Begins :func:`reduce_scatter_mean`, in one collective, and goes on; what is returned waits for it, and gives the
    shard. ``flat`` must stay as it is until then."""
    ranks = group.size()
    if dist.get_backend(group) != "gloo":
        shard = flat.new_empty(flat.numel() // ranks)
        work: Any = dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG, group=group, async_op=True)

        def scattered() -> Tensor:
            work.wait()
            return shard

        return scattered
    received = torch.empty_like(flat)
    sending: Any = dist.all_to_all_single(received, flat, group=group, async_op=True)

    def summed() -> Tensor:
        sending.wait()
        kind = torch.promote_types(flat.dtype, torch.float32)
        return received.view(ranks, flat.numel() // ranks).sum(0, dtype=kind).div_(ranks).to(flat.dtype)

    return summed


def all_gather_flat(flat: Tensor, shard: Tensor, group: ProcessGroup) -> None:
    """Gathers every rank's ``shard`` [shard] into ``flat`` [N * shard], in the order of ranks. ``shard`` may be a view
    of this rank's part of ``flat``."""
    own = shard.detach()
    if own.untyped_storage()._cdata == flat.untyped_storage()._cdata:
        own = own.clone()
    if dist.get_backend(group) != "gloo":
        dist.all_gather_into_tensor(flat, own, group=group)
        return
    rows = flat.view(group.size(), flat.numel() // group.size())
    flying: deque[Any] = deque()
    for start, end in _pieces(flat, group.size()):
        parts = [row[start:end] for row in rows]
        flying.append(dist.all_gather(parts, own[start:end], group=group, async_op=True))
        if len(flying) == IN_FLIGHT:
            flying.popleft().wait()
    while flying:
        flying.popleft().wait()


def padded(tensors: list[Tensor], multiple: int) -> Tensor:
    """Lays the tensors end to end, flat, with zeros up to a multiple of ``multiple`` elements: what ranks can
    divide."""
    total = sum(tensor.numel() for tensor in tensors)
    filling = tensors[0].new_zeros(-total % multiple)
    return torch.cat([*(tensor.reshape(-1) for tensor in tensors), filling])


def _pieces(flat: Tensor, ranks: int) -> list[tuple[int, int]]:
    """Returns ranges of a shard of ``flat`` that go one by one."""
    shard = flat.numel() // ranks
    count = max(1, min(PIECES, flat.numel() * flat.element_size() // LEAST_PIECE_BYTES, shard))
    ends = [shard * (piece + 1) // count for piece in range(count)]
    return list(zip([0, *ends], ends, strict=False))


def _land(flying: deque[tuple[Tensor, Finish]]) -> None:
    into, finish = flying.popleft()
    into.copy_(finish())
