"""Exchanges what ranks send each other: any tensors as one message of bytes, and means over ranks. For every entry of
the folder.

All collectives of a step are launched from one thread, in one order on every rank. Messages of one call have the same
shapes and dtypes on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Message = tuple[Tensor, ...]
"""A compressed tensor: what is sent for it."""

BUCKET_BYTES = 25 * 2**20
"""Of one all-reduce, as torch's DistributedDataParallel has them."""


def in_bytes(messages: Sequence[Message]) -> Tensor:
    """Returns all parts of all messages, one after the other: uint8 [bytes]."""
    parts = [part.contiguous().view(-1).view(torch.uint8) for message in messages for part in message]
    return torch.cat(parts)


def from_bytes(sent: Tensor, like: Sequence[Message]) -> list[Message]:
    """Computes the inverse of :func:`in_bytes`, for messages with the shapes and dtypes of ``like``. Copies, so that
    each part begins at an address of its dtype."""
    messages, start = [], 0
    for message in like:
        parts = []
        for part in message:
            end = start + part.nbytes
            parts.append(sent[start:end].clone().view(part.dtype).view(part.shape))
            start = end
        messages.append(tuple(parts))
    return messages


def gathered(messages: Sequence[Message], group: ProcessGroup) -> Iterator[list[Message]]:
    """Yields every rank's messages, rank by rank: one all-gather. A rank sends its bytes to each of the N - 1 others;
    where there is no message, nothing."""
    if not messages:
        return ([] for _ in range(group.size()))
    own = in_bytes(messages)
    everyones = own.new_empty(group.size() * len(own))
    dist.all_gather_into_tensor(everyones, own, group=group)
    return (from_bytes(sent, messages) for sent in everyones.view(group.size(), -1))


def mean_over_ranks(tensors: Mapping[str, Tensor], group: ProcessGroup) -> dict[str, Tensor]:
    """Computes the mean of each tensor, uncompressed: all-reduces of buckets. Divides before it adds, as data
    parallelism does: so the bits are the same."""
    means: dict[str, Tensor] = {}
    for bucket in buckets(tensors):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket.values()]).div_(group.size())
        dist.all_reduce(flat, group=group)
        parts = flat.split([gradient.numel() for gradient in bucket.values()])
        means |= {name: part.view_as(gradient) for part, (name, gradient) in zip(parts, bucket.items(), strict=True)}
    return means


def buckets(tensors: Mapping[str, Tensor], most: int = BUCKET_BYTES) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors in their order, in groups of one dtype and of at most ``most`` bytes, or of a single
    tensor."""
    bucket: dict[str, Tensor] = {}
    held = 0
    for name, tensor in tensors.items():
        if bucket and (held + tensor.nbytes > most or next(iter(bucket.values())).dtype != tensor.dtype):
            yield bucket
            bucket, held = {}, 0
        bucket[name] = tensor
        held += tensor.nbytes
    if bucket:
        yield bucket


def clipped(gradients: dict[str, Tensor], largest_norm: float, beside: Collection[str] = ()) -> dict[str, Tensor]:
    """Returns the gradients times what makes their joint norm at most ``largest_norm``; so are those of what trains
    ``beside`` the model, by a norm of their own."""
    factors = {}
    for auxiliary in (False, True):
        if norms := [gradient.norm() for name, gradient in gradients.items() if (name in beside) == auxiliary]:
            factors[auxiliary] = (largest_norm / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
    return {name: gradient * factors[name in beside] for name, gradient in gradients.items()}
