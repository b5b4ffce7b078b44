"""ZeRO stage 1 (Rajbhandari et al., SC 2020, section 5.1, P_os): each rank has the optimizer state of 1/N of the model.

A step is: reduce-scatter the gradients, update the own shard, all-gather the parameters. The volume is that of an
all-reduce, 2 (N - 1) / N of the model per rank; model, gradients and Adam's state take 8 + 8 / N bytes per parameter in
fp32, where data parallelism takes 16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
class Flat:
    """One parameter group as one contiguous buffer; the model's parameters are views into it.

    ``shard`` is this rank's part of ``values``, the parameter that the optimizer sees.
    """

    parameters: list[nn.Parameter]
    values: Tensor  # [ranks * shard], zero-padded
    shard: nn.Parameter

    @classmethod
    def of(cls, parameters: list[nn.Parameter], rank: int, ranks: int) -> Flat:
        if len(kinds := {(p.dtype, p.device) for p in parameters}) > 1:
            raise ValueError(
                f"one buffer cannot hold parameters of {kinds}; put each kind in a parameter group of its own"
            )
        size = math.ceil(sum(p.numel() for p in parameters) / ranks)
        values = parameters[0].data.new_zeros(size * ranks)
        offset = 0
        for parameter in parameters:
            view = values[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.data = view.copy_(parameter.data)
            offset += parameter.numel()
        return cls(parameters, values, nn.Parameter(values[rank * size : (rank + 1) * size]))

    def reduce_gradients(self, group: ProcessGroup) -> None:
        """Moves the parameters' gradients, averaged over ranks, to the shard; the full ones are freed."""
        flat = torch.zeros_like(self.values)  # zeros where a parameter got no gradient, and in the padding
        offset = 0
        for parameter in self.parameters:
            if parameter.grad is not None:
                flat[offset : offset + parameter.numel()] = parameter.grad.flatten()
                parameter.grad = None
            offset += parameter.numel()
        self.shard.grad = reduce_scatter_mean(flat, group)

    def gather(self, group: ProcessGroup) -> None:
        """Every rank's updated shard into every rank's parameters."""
        dist.all_gather_into_tensor(self.values, self.shard.detach().clone(), group=group)


@dataclass
class Zero1(Technique):
    """Composes with optimizers whose update is elementwise: a shard does not end where a matrix ends."""

    ranks: int = 2

    flats: list[Flat] = field(init=False, default_factory=list)
    reduced: Act = field(init=False, repr=False, default_factory=Act)
    gathered: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"a partition needs 2 ranks or more, not {self.ranks}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, group=mesh.get_group(), group_src=0)
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        self.flats = [Flat.of(group["params"], run.rank, run.world_size) for group in groups]
        return [
            {**group, "params": [flat.shard], "sharded": True} for group, flat in zip(groups, self.flats, strict=True)
        ]

    def after_backward(self, run: Run) -> None:
        for flat in self.flats:
            flat.reduce_gradients(run.group)
            self.reduced()

    def after_step(self, run: Run) -> None:
        for flat in self.flats:
            flat.gather(run.group)
            self.gathered()

    def sites(self, run: Run) -> Mapping[str, Site]:
        acts = {"reduces the gradients": self.reduced, "gathers the parameters": self.gathered}
        return {**run.trained_parameters(), **acts}

    def probes(self, run: Run) -> dict[str, float]:
        counts = [sum(p.numel() for p in flat.parameters) for flat in self.flats]
        return {
            "adam_state_bytes_formula": float(state_bytes(counts, self.ranks)),
            "padding_elements": float(sum(flat.values.numel() for flat in self.flats) - sum(counts)),
        }
