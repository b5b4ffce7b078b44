"""ZeRO stage 3 (Rajbhandari et al., SC 2020, section 5.3, P_os+g+p) by torch's FSDP2: each rank keeps 1/N of all.

::

    forward     of each unit: all-gather its parameters, compute, free them
    backward    of each unit: all-gather again, compute, free; reduce-scatter its gradients
    then        update the own shards

A unit is a block, or several that share parameters; the rest of the model is one more. Model, gradients and Adam's
state take 16 / N bytes per parameter, in fp32 and in mixed precision; the volume is 3 (N - 1) / N of the model per
rank, half as much again as data parallelism's (section 7.2.2). FSDP2's own reduce-scatter would send more on gloo
(:mod:`..shared.collectives`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import Shard

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, overrides
from suite.model.anatomy import anatomy
from suite.record.job import StackError
from techniques.parallelism.shared.collectives import reduce_scatter_mean
from techniques.shared.replicas import begin_alike

HALF = torch.bfloat16  # the paper's float16 has its range only with a scaled loss


def even_placement(parameter: nn.Parameter, ranks: int) -> Shard:
    """Returns the first dimension that divides among the ranks; of none, dimension 0, padded."""
    return Shard(next((dim for dim, size in enumerate(parameter.shape) if size % ranks == 0), 0))


def units_of(blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Groups the blocks one by one, but those that share parameters together: a parameter has one unit."""
    units: list[list[nn.Module]] = []
    for block in blocks:
        own = set(block.parameters())
        joined = [unit for unit in units if any(own & set(other.parameters()) for other in unit)]
        units = [unit for unit in units if unit not in joined]
        units.append([*(other for unit in joined for other in unit), block])
    return units


class Scatter(DefaultReduceScatter):
    """Implements FSDP2's reduction at the ideal volume."""

    def __init__(self, reduced: Act) -> None:
        super().__init__()
        self.reduced = reduced

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.copy_(reduce_scatter_mean(input_tensor, group))
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(group.size())
        self.reduced()


class Gather(DefaultAllGather):
    """Counts FSDP2's own all-gather."""

    def __init__(self, gathered: Act) -> None:
        super().__init__()
        self.gathered = gathered

    def __call__(self, *tensors: Any, **options: Any) -> dist.Work | None:
        self.gathered()
        return super().__call__(*tensors, **options)


@dataclass
class Zero3(Technique):
    """``reshard_after_forward=false`` keeps a unit's parameters from its forward to its backward pass: less volume, 2
    (N - 1) / N, and the memory of stage 2. With ``mixed_precision`` passes and collectives are bfloat16's, and what
    the optimizer moves stays float32."""

    ranks: int = 2
    reshard_after_forward: bool = True
    mixed_precision: bool = False

    reduced: Act = field(init=False, repr=False, default_factory=Act)
    gathered: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"a partition needs 2 ranks or more, not {self.ranks}")

    @property
    def shards_parameters(self) -> bool:
        return True

    def recipe(self, recipe: Recipe) -> Recipe:
        precision = "bf16" if self.mixed_precision else recipe.precision
        return replace(recipe, world_size=self.ranks, precision=precision)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        begin_alike(model, mesh.get_group())
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # as FSDP2 demands
        half = MixedPrecisionPolicy(HALF, HALF)
        blocks = [block.module for stack in anatomy(model).stacks for block in stack.blocks]
        for unit in (*units_of(blocks), [model]):
            fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=self.reshard_after_forward,
                shard_placement_fn=lambda parameter: even_placement(parameter, mesh.size()),
                mp_policy=half if self.mixed_precision else MixedPrecisionPolicy(),
            )
            sharded: Any = unit[0]
            sharded.set_custom_reduce_scatter(Scatter(self.reduced))
            sharded.set_custom_all_gather(Gather(self.gathered))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        """Raises StackError where another technique evaluates a copy of the model."""
        techniques = run.technique.techniques
        if copying := [name for name, technique in techniques.items() if overrides(technique, "evaluated")]:
            raise StackError(
                f"zero3_fsdp and {' and '.join(copying)} cannot be stacked: FSDP's modules cannot be copied, and what "
                "evaluates other weights copies the model; take zero2"
            )
        units: dict[str, Site] = {
            name or "the model": module
            for name, module in run.model.named_modules()
            if isinstance(module, FSDPModule) and isinstance(module, nn.Module)
        }
        acts = {"reduces the gradients": self.reduced, "gathers the parameters": self.gathered}
        return {**units, **run.trained_parameters(), **acts}
