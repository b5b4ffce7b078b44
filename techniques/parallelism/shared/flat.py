"""Implements flat shards, of ZeRO's first and second stage: parameter groups as contiguous buffers of which each rank
moves 1/N.

::

    flat      | p0 | p1     | p2  | p3        |0|      the parameters are views into it; zeros up to a multiple of N
    buckets   |  bucket 0    |  bucket 1    | ...      what one collective reduces, or gathers
    shards    |own |    |    |own |    |    | ...      of each bucket this rank moves 1/N (rank 0's shown)

In mixed precision (Rajbhandari et al., SC 2020, section 3.1) the flat buffer and the gradients are bfloat16, and a
shard is its float32 master: 2 + 2 bytes a parameter for the passes, 12 for the master and Adam's two moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.parallelism.shared.collectives import all_gather_flat, padded
from techniques.shared.replicas import begin_alike, first_rank_s_statistics

HALF = torch.bfloat16  # the paper's float16 has its range only with a scaled loss


def state_bytes(counts: Sequence[int], ranks: int, tensors: int = 2, itemsize: int = 4) -> int:
    """Computes optimizer-state bytes of one rank, step counters aside, for parameter groups of ``counts`` elements.

    Each group is padded to a multiple of ``ranks``. Adam keeps 2 tensors per parameter, 3 with a master.
    """
    return sum(tensors * itemsize * math.ceil(count / ranks) for count in counts)


@dataclass
class Bucket:
    """Describes a range of a flat buffer, reduced and gathered at once, and this rank's part of it, which the optimizer
    sees.

    ``pieces`` are the parameters' elements in it: a parameter, where in it they begin, where in the bucket, how many.
    """

    values: Tensor  # [ranks * shard]
    own: Tensor  # [shard], this rank's part of them
    shard: nn.Parameter  # [shard], ``own`` itself or its float32 master
    pieces: list[tuple[nn.Parameter, int, int, int]]

    def take_gradients(self) -> Tensor:
        """Lays the parameters' gradients end to end, [ranks * shard]; each is freed with its first element."""
        flat = torch.zeros_like(self.values)  # zeros where a parameter got no gradient, and in the padding
        for parameter, first, start, count in self.pieces:
            if parameter.grad is not None:
                flat[start : start + count] = parameter.grad.reshape(-1)[first : first + count]
                if first == 0:
                    parameter.grad = None
        return flat

    def keep(self, mean: Tensor) -> None:
        """Adds this rank's part of the mean gradient, of the parameters' type, to what the shard has."""
        if self.shard.grad is None:
            self.shard.grad_dtype = mean.dtype  # also of a master
            self.shard.grad = mean
        else:
            self.shard.grad = self.shard.grad + mean

    def gather(self, group: ProcessGroup) -> None:
        """Gathers every rank's updated shard into every rank's parameters."""
        if self.shard.dtype != self.own.dtype:
            self.own.copy_(self.shard.detach())
        all_gather_flat(self.values, self.own, group)


@dataclass
class Flat:
    """Holds one parameter group as one contiguous buffer; the model's parameters are views into it."""

    parameters: list[nn.Parameter]
    values: Tensor  # zero-padded to a multiple of ranks
    buckets: list[Bucket]

    @classmethod
    def of(
        cls,
        parameters: list[nn.Parameter],
        rank: int,
        ranks: int,
        bucket: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Flat:
        """Builds the buffer, where ``bucket`` is the most elements of one, all where it is None; ``dtype`` is the
        parameters' type from now on, their own where it is None. Raises ValueError where they are of several types or
        devices."""
        if len(kinds := {(p.dtype, p.device) for p in parameters}) > 1:
            raise ValueError(
                f"one buffer cannot hold parameters of {kinds}; put each kind in a parameter group of its own"
            )
        exact = padded([parameter.data for parameter in parameters], ranks)
        values = exact if dtype is None else exact.to(dtype)
        offset = 0
        for parameter in parameters:
            parameter.data = values[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        total = values.numel()
        size = total if bucket is None else max(1, bucket // ranks) * ranks
        buckets = []
        for start in range(0, total, size):
            part = values[start : start + size]
            mine = slice(rank * (len(part) // ranks), (rank + 1) * (len(part) // ranks))
            moved = part[mine] if dtype is None else exact[start : start + size][mine].clone()
            shard = nn.Parameter(moved)
            buckets.append(Bucket(part, part[mine], shard, list(pieces(parameters, start, start + len(part)))))
        return cls(parameters, values, buckets)


def pieces(parameters: Sequence[nn.Parameter], start: int, end: int) -> Iterator[tuple[nn.Parameter, int, int, int]]:
    """Yields the parts of ``parameters``, laid end to end, that lie in [start, end), as a bucket has them."""
    offset = 0
    for parameter in parameters:
        low, high = max(offset, start), min(offset + parameter.numel(), end)
        if low < high:
            yield parameter, low - offset, low - start, high - low
        offset += parameter.numel()


@dataclass
class FlatShards(Technique):
    """Does what both stages do alike: everything but when gradients are reduced.

    ``bucket_mb`` is the size of one reduction, as in data parallelism. With ``mixed_precision`` the passes are
    bfloat16's, and the optimizer moves float32 masters of the shards.
    """

    ranks: int = 2
    bucket_mb: float = 25.0
    mixed_precision: bool = False

    flats: list[Flat] = field(init=False, repr=False, default_factory=list)
    reduced: Act = field(init=False, repr=False, default_factory=Act)
    gathered: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"a partition needs 2 ranks or more, not {self.ranks}")
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {self.bucket_mb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        precision = "bf16" if self.mixed_precision else recipe.precision
        return replace(recipe, world_size=self.ranks, precision=precision)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        begin_alike(model, mesh.get_group())
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        self.flats = [self.flat(group["params"], run) for group in groups]
        return [
            {**group, "params": [bucket.shard for bucket in flat.buckets], "sharded": True}
            for group, flat in zip(groups, self.flats, strict=True)
        ]

    def flat(self, parameters: list[nn.Parameter], run: Run) -> Flat:
        kind = HALF if self.mixed_precision else None
        elements = int(self.bucket_mb * 2**20 / (kind or parameters[0].dtype).itemsize)
        return Flat.of(parameters, run.rank, run.world_size, elements, kind)

    @property
    def buckets(self) -> list[Bucket]:
        """Returns the buckets, the last first, as gradients arise, so that those of a large table of tokens, which
        models register first, stay whole only while nothing else is left."""
        return [bucket for flat in self.flats for bucket in reversed(flat.buckets)]

    def to_masters(self) -> None:
        """Converts the shards' gradients to the shards' own type."""
        for bucket in self.buckets:
            gradient, kind = bucket.shard.grad, bucket.shard.dtype
            if gradient is not None and gradient.dtype != kind:
                bucket.shard.grad, bucket.shard.grad_dtype = None, kind
                bucket.shard.grad = gradient.to(kind)

    def after_step(self, run: Run) -> None:
        for bucket in self.buckets:
            bucket.gather(run.group)
            self.gathered()
        first_rank_s_statistics(run.model, run.group)

    def sites(self, run: Run) -> Mapping[str, Site]:
        acts = {"reduces the gradients": self.reduced, "gathers the parameters": self.gathered}
        return {**run.trained_parameters(), **acts}

    def state(self) -> dict[str, Any]:
        return {"masters": [bucket.shard.detach() for bucket in self.buckets]} if self.mixed_precision else {}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        for bucket, master in zip(self.buckets, state.get("masters", ()), strict=False):
            bucket.shard.data.copy_(master)
