"""Implements synchronous data parallelism (Li et al., PVLDB 2020, section 3): equal replicas on different examples.

Each rank computes the gradient of its share of the batch; a bucketed all-reduce, overlapped with the backward pass,
makes the mean of them. A bucket is reduced when all its gradients are there; a parameter that a pass does not use never
has one, and holds its bucket up for good, so DDP then looks for such ones in every pass (section 3.2.3). That costs a
walk through the graph and one more reduction, so it is done for the models that have some.

A replica whose gradients are not reduced trains as well as one whose are, alone. So in the first step the ranks, whose
examples differ, compare the gradients that they are about to use: only a reduction makes those equal.

This is torch's own DistributedDataParallel: the reference that the sharded techniques are compared against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from suite.device.random_state import unchanged_randomness
from suite.loop.data import mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique


def reached(loss: Tensor) -> set[Tensor]:
    """Finds the leaves of the graph of ``loss``: the tensors that its backward pass gives a gradient."""
    leaves: set[Tensor] = set()
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            if (leaf := getattr(node, "variable", None)) is not None:
                leaves.add(leaf)
    return leaves


def uses_all_parameters(model: nn.Module, run: Run) -> bool:
    """Tells whether a forward pass of a rank's first examples uses all trainable parameters. It leaves no trace."""
    count = run.recipe.batch_size // run.world_size
    examples, _ = run.data.batch(mixed_seed(run.seed, 2), 0, count)
    batch = {name: tensor.to(run.device) for name, tensor in examples.items()}
    buffers = list(model.buffers())
    copies = [buffer.clone() for buffer in buffers]
    with unchanged_randomness(run.device), run.autocast():
        outputs = run.baseline.forward(model.train(), batch)
    loss = run.baseline.losses(outputs, batch).mean()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    used = reached(loss)
    left = {name: parameter for name, parameter in trained.items() if parameter not in used}
    if left.keys() & run.attachment.added(model).keys():  # perhaps a loss that its technique adds uses it
        used = reached(run.technique.loss(loss, outputs, batch, run))
        left = {name: parameter for name, parameter in left.items() if parameter not in used}
    for buffer, copied in zip(buffers, copies, strict=True):
        buffer.copy_(copied)
    return not left


BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as long as a float


def one_gradient(parameters: Sequence[Tensor], group: ProcessGroup) -> bool:
    """Tells whether all ranks have the same gradients, compared by the sum of each one's bits: one small reduction."""
    sums = [torch.zeros((), dtype=torch.int64, device=parameter.device) for parameter in parameters]
    for own, parameter in zip(sums, parameters, strict=True):
        if (gradient := parameter.grad) is not None:
            own += gradient.contiguous().view(BITS[gradient.element_size()]).sum(dtype=torch.int64)
    least_and_most = torch.stack(
        [*(~complement for complement in sums), *sums]
    )  # of the complements the most is the least's
    dist.all_reduce(least_and_most, op=dist.ReduceOp.MAX, group=group)
    least, most = least_and_most.chunk(2)
    return isinstance(most, FakeTensor) or torch.equal(~least, most)  # a fake one has no value to ask for


@dataclass
class DataParallel(Technique):
    """``bucket_mb`` is the size of one all-reduce (25 MiB in the paper's figure 7 and in torch).

    The global batch stays as it is, so that the trajectory is the single process's up to rounding; each rank sees
    ``batch_size / ranks`` examples. A rank's loss is the mean over its own examples; the mean over ranks is the global
    mean because every rank has equally many (and every masked text equally many masked tokens).
    """

    ranks: int = 2
    bucket_mb: float = 25.0
    run: Run | None = field(init=False, repr=False, default=None)
    reduced: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"data parallelism needs 2 ranks or more, not {self.ranks}")
        if not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {self.bucket_mb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        self.run = run
        return model

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return DistributedDataParallel(
            model,
            process_group=mesh.get_group(),
            bucket_cap_mb=self.bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=self.run is None or not uses_all_parameters(model, self.run),
        )

    def after_backward(self, run: Run) -> None:
        if not run.attachment.proven and one_gradient(list(run.model.parameters()), run.group):
            self.reduced()

    def sites(self, run: Run) -> Mapping[str, Site]:
        """Returns the replica, whose forward pass arms the reduction of the gradients, the reduction, and every
        parameter."""
        return {"the replica": run.model, "reduces the gradients": self.reduced, **run.trained_parameters()}
