"""ZeRO stage 1 (Rajbhandari et al., SC 2020, section 5.1, P_os): each rank has the optimizer state of 1/N of the model.

A step is: reduce-scatter the gradients, update the own shard, all-gather the parameters. The volume is that of an
all-reduce, 2 (N - 1) / N of the model per rank; model, gradients and Adam's state take 8 + 8 / N bytes per parameter in
fp32, where data parallelism takes 16. Gradients are reduced in buckets, or the buffers of a reduction would take as
much again as is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.sites import Act, Site
from suite.contract.technique import ParameterGroups, Technique


def reduce_scatter_mean(flat: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's 1/N of the mean over ranks of ``flat`` [N * shard]; returns [shard].

    gloo's own reduce-scatter sends as much as an all-reduce does, twice what the paper counts; an all-to-all and a
    local sum send (N - 1) / N.
    """
    ranks = group.size()
    if dist.get_backend(group) == "nccl":
        shard = flat.new_empty(flat.numel() // ranks)
        dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG, group=group)
        return shard
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat, group=group)
    return received.view(ranks, -1).sum(0).div_(ranks)


def state_bytes(counts: Sequence[int], ranks: int, tensors: int = 2, itemsize: int = 4) -> int:
    """Optimizer-state bytes of one rank, step counters aside, for parameter groups of ``counts`` elements.

    Each group is padded to a multiple of ``ranks``. Adam keeps 2 tensors per parameter.
    """
    return sum(tensors * itemsize * math.ceil(count / ranks) for count in counts)


@dataclass
class Bucket:
    """A range of a flat buffer, reduced and gathered at once, and this rank's part of it, which the optimizer sees.

    ``pieces`` are the parameters' elements in it: a parameter, where in it they begin, where in the bucket, how many.
    """

    values: Tensor  # [ranks * shard]
    shard: nn.Parameter
    pieces: list[tuple[nn.Parameter, int, int, int]]

    def reduce_gradients(self, group: ProcessGroup) -> None:
        """Moves the parameters' gradients, averaged over ranks, to the shard; each is freed with its first element."""
        flat = torch.zeros_like(self.values)  # zeros where a parameter got no gradient, and in the padding
        for parameter, first, start, count in self.pieces:
            if parameter.grad is not None:
                flat[start : start + count] = parameter.grad.reshape(-1)[first : first + count]
                if first == 0:
                    parameter.grad = None
        self.shard.grad = reduce_scatter_mean(flat, group)

    def gather(self, group: ProcessGroup) -> None:
        """Every rank's updated shard into every rank's parameters."""
        dist.all_gather_into_tensor(self.values, self.shard.detach().clone(), group=group)


@dataclass
class Flat:
    """One parameter group as one contiguous buffer; the model's parameters are views into it.

    It is reduced bucket by bucket, the last one first, as gradients arise, so that those of a large table of tokens,
    which models register first, stay whole only while nothing else is left.
    """

    parameters: list[nn.Parameter]
    values: Tensor  # zero-padded to a multiple of ranks
    buckets: list[Bucket]

    @classmethod
    def of(cls, parameters: list[nn.Parameter], rank: int, ranks: int, bucket: int | None = None) -> Flat:
        """``bucket`` is the most elements of one, all where it is None."""
        if len(kinds := {(p.dtype, p.device) for p in parameters}) > 1:
            raise ValueError(
                f"one buffer cannot hold parameters of {kinds}; put each kind in a parameter group of its own"
            )
        total = math.ceil(sum(p.numel() for p in parameters) / ranks) * ranks
        values = parameters[0].data.new_zeros(total)
        offset = 0
        for parameter in parameters:
            view = values[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.data = view.copy_(parameter.data)
            offset += parameter.numel()
        size = total if bucket is None else max(1, bucket // ranks) * ranks
        buckets = []
        for start in range(0, total, size):
            part = values[start : start + size]
            own = len(part) // ranks
            shard = nn.Parameter(part[rank * own : (rank + 1) * own])
            buckets.append(Bucket(part, shard, list(pieces(parameters, start, start + len(part)))))
        return cls(parameters, values, buckets)

    def reduce_gradients(self, group: ProcessGroup) -> None:
        """Moves the parameters' gradients, averaged over ranks, to the shards."""
        for bucket in reversed(self.buckets):
            bucket.reduce_gradients(group)

    def gather(self, group: ProcessGroup) -> None:
        """Every rank's updated shards into every rank's parameters."""
        for bucket in self.buckets:
            bucket.gather(group)


def pieces(parameters: Sequence[nn.Parameter], start: int, end: int) -> Iterator[tuple[nn.Parameter, int, int, int]]:
    """The parts of ``parameters``, laid end to end, that lie in [start, end), as a bucket has them."""
    offset = 0
    for parameter in parameters:
        low, high = max(offset, start), min(offset + parameter.numel(), end)
        if low < high:
            yield parameter, low - offset, low - start, high - low
        offset += parameter.numel()


@dataclass
class Zero1(Technique):
    """Composes with optimizers whose update is elementwise: a shard does not end where a matrix ends.

    ``bucket_mb`` is the size of one reduction, as in data parallelism: two buffers of it are all that a step takes
    beside model, gradients and state.
    """

    ranks: int = 2
    bucket_mb: float = 25.0

    flats: list[Flat] = field(init=False, default_factory=list)
    reduced: Act = field(init=False, repr=False, default_factory=Act)
    gathered: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"a partition needs 2 ranks or more, not {self.ranks}")
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {self.bucket_mb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, group=mesh.get_group(), group_src=0)
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        self.flats = [self.flat(group["params"], run) for group in groups]
        return [
            {**group, "params": [bucket.shard for bucket in flat.buckets], "sharded": True}
            for group, flat in zip(groups, self.flats, strict=True)
        ]

    def flat(self, parameters: list[nn.Parameter], run: Run) -> Flat:
        elements = int(self.bucket_mb * 2**20 / parameters[0].element_size())
        return Flat.of(parameters, run.rank, run.world_size, elements)

    def after_backward(self, run: Run) -> None:
        for flat in self.flats:
            flat.reduce_gradients(run.group)
            self.reduced()

    def after_step(self, run: Run) -> None:
        for flat in self.flats:
            flat.gather(run.group)
            self.gathered()
        for buffer in run.model.buffers():  # running statistics are rank 0's, as in data parallelism
            if buffer.is_floating_point():
                dist.broadcast(buffer, group=run.group, group_src=0)

    def sites(self, run: Run) -> Mapping[str, Site]:
        acts = {"reduces the gradients": self.reduced, "gathers the parameters": self.gathered}
        return {**run.trained_parameters(), **acts}
