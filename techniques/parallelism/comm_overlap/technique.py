"""Overlaps communication and computation in data parallelism (Li et al., PVLDB 2020, section 3.2.3).

    serial      | backward: layer 3 | layer 2 | layer 1 | bucket 0 | bucket 1 |  step: T_c + T_x
    overlapped  | backward: layer 3 | layer 2 | layer 1 |                        step: max(T_c, T_x) at best
                              | bucket 0 | bucket 1 |

A bucket of gradients is averaged by an all-reduce. Overlapped, that begins as soon as its gradients are there, and runs
beside the rest of the backward pass; serial, it begins when the pass is over, and each waits for the one before. Both
reduce the same buckets, so their gradients are equal to the bit, and so is their volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.parallelism.shared.in_backward import End, InBackward
from techniques.shared.replicas import begin_alike

Bucket = list[nn.Parameter]


def buckets_of(parameters: list[nn.Parameter], size_bytes: float) -> list[Bucket]:
    """Puts the parameters, in the order in which gradients arise, the last first, into buckets of ``size_bytes`` or of
    one parameter; each of one type and device."""
    buckets: list[Bucket] = []
    filled = 0
    for parameter in reversed(parameters):
        kind, nbytes = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
        if not buckets or filled + nbytes > size_bytes or kind != (buckets[-1][0].dtype, buckets[-1][0].device):
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += nbytes
    return buckets


@dataclass
class CommunicationOverlap(Technique):
    """``overlapped=false`` is the serial form. ``bucket_mb`` is the size of one all-reduce.

    Attributes:
        order: of the last step: ``begin`` and ``end`` of each bucket's all-reduce, ``gradient`` where the pass reached
            another parameter, ``backward`` where it was over.
    """

    ranks: int = 2
    overlapped: bool = True
    bucket_mb: float = 25.0

    order: list[str] = field(init=False, repr=False, default_factory=list)
    buckets: list[Bucket] = field(init=False, repr=False, default_factory=list)
    reduction: InBackward[Bucket] | None = field(init=False, repr=False, default=None)
    reduced: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"data parallelism needs 2 ranks or more, not {self.ranks}")
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {self.bucket_mb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        begin_alike(model, mesh.get_group())
        return model

    def arrived(self, parameter: nn.Parameter) -> None:
        """Notes that the pass has made a gradient."""
        if "backward" in self.order:  # of the pass before
            self.order.clear()
        self.order.append("gradient")

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
        self.buckets = buckets_of(trained, self.bucket_mb * 2**20)
        if self.reduction is not None:  # of a model that has been grown meanwhile
            self.reduction.remove()
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self.arrived)
        if self.overlapped:
            self.reduction = InBackward(self.buckets, lambda bucket: bucket, lambda bucket: self.begin(bucket, run))
        return groups

    def begin(self, bucket: Bucket, run: Run) -> End:
        """Begins the mean over ranks of a bucket's gradients; what is returned waits, and puts it into them."""
        self.order.append("begin")
        self.reduced()
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in bucket
        ]  # others have one
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(run.world_size)
        for parameter in bucket:
            parameter.grad = None
        del gradients
        work = dist.all_reduce(flat, group=run.group, async_op=True)

        def end() -> None:
            if work is not None:
                work.wait()
            for parameter, mean in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                parameter.grad = mean.view_as(parameter)
            self.order.append("end")

        return end

    def unreduced(self, run: Run) -> AbstractContextManager[Any]:
        return nullcontext() if self.reduction is None else self.reduction.paused()

    def after_backward(self, run: Run) -> None:
        self.order.append("backward")
        if not self.overlapped:
            for bucket in self.buckets:
                self.begin(bucket, run)()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**run.trained_parameters(), "reduces the gradients": self.reduced}
