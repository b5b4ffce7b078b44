"""Runs one rank of a large world on one process: torch's fake process group, whose collectives move nothing.

They are asked for as real ones are, so a step shows what this rank holds and what it would send; with tensors without
values (:mod:`suite.measure.at_scale.weightless`) a rank of thousands fits a laptop. This one is rank 0: where a model
does not divide evenly, no other holds more.

What of torch's DistributedDataParallel reads values in C++ is set right here, one reason a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
import torch.nn.parallel.distributed as data_parallel
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.futures import Future

from suite.measure.at_scale.weightless import replaced


@contextmanager
def fake_ranks(count: int) -> Iterator[DeviceMesh | None]:
    """Has the mesh of ``count`` ranks of which this process is the first; None of one. Enter it where tensors have
    values.

    Raises ValueError where this process is a rank of real ones.
    """
    if count == 1:
        yield None
        return
    if dist.is_initialized():
        raise ValueError(
            "this process is one of real ranks and cannot stand for another: count in a process of its own"
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        # compares the shapes of all ranks' parameters
        stack.enter_context(replaced(data_parallel, "_verify_param_shape_across_processes", lambda *_: None))
        # asks rank 0 in which order the gradients arose
        stack.enter_context(replaced(dist.Reducer, "_rebuild_buckets", lambda _: False))
        # so its buckets are from the first step on those of the second, in the order of the parameters
        first = data_parallel.DistributedDataParallel._ddp_init_helper
        stack.enter_context(
            replaced(data_parallel.DistributedDataParallel, "_ddp_init_helper", _in_buckets_of_the_second_step(first))
        )
        # the default hook waits for a result that a fake collective does not have
        before_forward = data_parallel.DistributedDataParallel._pre_forward
        stack.enter_context(
            replaced(data_parallel.DistributedDataParallel, "_pre_forward", _with_a_hook(before_forward))
        )
        yield init_device_mesh("cpu", (count,))


def _in_buckets_of_the_second_step(begin: Any) -> Any:
    def begun(replica: Any, *args: Any, **kwargs: Any) -> Any:
        assigned: Any = dist._compute_bucket_assignment_by_size

        def of_its_size(parameters: Any, limits: Any, *more: Any) -> Any:
            return assigned(parameters, [dist._DEFAULT_FIRST_BUCKET_BYTES, replica.bucket_bytes_cap], *more)

        with replaced(dist, "_compute_bucket_assignment_by_size", of_its_size):
            return begin(replica, *args, **kwargs)

    return begun


def _with_a_hook(before_forward: Any) -> Any:
    def averaged(group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        flat = bucket.buffer().div_(group.size())
        dist.all_reduce(flat, group=group, async_op=True)  # as the default hook does
        done: Future[Tensor] = Future()
        done.set_result(flat)
        return done

    averaged.__annotations__.clear()  # they are text here, and DDP wants types or none

    def pre_forward(replica: Any, *args: Any, **kwargs: Any) -> Any:
        if not replica._comm_hooks:
            replica.register_comm_hook(replica.process_group, averaged)
        return before_forward(replica, *args, **kwargs)

    return pre_forward
