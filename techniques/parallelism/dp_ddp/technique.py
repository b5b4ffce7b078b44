"""Synchronous data parallelism (Li et al., PVLDB 2020, section 3): equal replicas on different examples.

Each rank computes the gradient of its share of the batch; a bucketed all-reduce, overlapped with the backward pass,
makes the mean of them.

This is torch's own DistributedDataParallel: the reference that the sharded techniques are compared against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.sites import Site
from suite.contract.technique import Technique


@dataclass
class DataParallel(Technique):
    """``bucket_mb`` is the size of one all-reduce (25 MiB in the paper's figure 7 and in torch).

    The global batch stays as it is, so that the trajectory is the single process's up to rounding; each rank sees
    ``batch_size / ranks`` examples. A rank's loss is the mean over its own examples; the mean over ranks is the global
    mean because every rank has equally many (and every masked text equally many masked tokens).
    """

    ranks: int = 2
    bucket_mb: float = 25.0

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"data parallelism needs 2 ranks or more, not {self.ranks}")
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {self.bucket_mb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return DistributedDataParallel(
            model, process_group=mesh.get_group(), bucket_cap_mb=self.bucket_mb, gradient_as_bucket_view=True
        )

    def sites(self, run: Run) -> Mapping[str, Site]:
        """The replica, whose forward pass arms the reduction of the gradients, and every parameter."""
        return {"the replica": run.model, **run.trained_parameters()}
