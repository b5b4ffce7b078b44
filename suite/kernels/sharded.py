"""Handles DTensors as optimizers see them: the part that this rank holds, and norms over the parts of all ranks.

A parameter of FSDP2 or of tensor parallelism is a DTensor. What goes element by element needs its local part only; the
norm of a layer, or of all gradients, is the root of a sum of squares over the ranks that hold a shard each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

WholeNorms = Callable[[Tensor], Tensor]
"""Norms of shards -> norms of the tensors that they are shards of."""


def is_distributed(tensor: Tensor) -> bool:
    """Tells whether it is a DTensor; asked without importing them, which takes a while."""
    return hasattr(tensor, "placements")


def local(tensor: Any) -> Tensor:
    """Returns what this rank holds of ``tensor``, in its own memory."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def local_gradient(parameter: Any) -> Tensor:
    """Returns the gradient of what this rank holds of ``parameter``."""
    gradient = parameter.grad
    if is_distributed(gradient) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return local(gradient)


def distributed_as(parameter: Any, part: Tensor) -> Tensor:
    """Returns ``part``, of this rank, as a tensor that is distributed as ``parameter`` is."""
    if not is_distributed(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def layout(tensor: Any) -> Hashable:
    """Returns a key that is equal for tensors that are distributed alike."""
    return (tensor.device_mesh, tensor.placements) if is_distributed(tensor) else None


def shard_dimensions(tensor: Any) -> list[int]:
    """Returns its dimensions that are divided among ranks, one for each dimension of the mesh that divides it."""
    if not is_distributed(tensor):
        return []
    return [placement.dim for placement in tensor.placements if not placement.is_replicate()]


def whole_norms(like: Any) -> WholeNorms | None:
    """Returns the norms of whole tensors from those of shards, for tensors distributed as ``like`` is; None where they
    are whole already. All ranks of the mesh call it together."""
    if not shard_dimensions(like):
        return None

    def whole(norms: Tensor) -> Tensor:
        squares = norms.square()
        for dimension, placement in enumerate(like.placements):
            if not placement.is_replicate():
                torch.distributed.all_reduce(squares, group=like.device_mesh.get_group(dimension))
        return squares.sqrt()

    return whole


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Computes the joint L2 norm, of shape [], in float32 at least: a float16 norm overflows at 65,504."""
    kinds: dict[Hashable, list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault(layout(gradient), []).append(gradient)
    norms = []
    for alike in kinds.values():
        norm, whole = _local_norm(list(map(local, alike))), whole_norms(alike[0])
        norms.append(norm if whole is None else whole(norm))
    if len(norms) < 2:
        return norms[0] if norms else torch.zeros(())
    return torch.linalg.vector_norm(torch.stack([value.to(norms[0].device) for value in norms]))


def _local_norm(tensors: Sequence[Tensor]) -> Tensor:
    kinds: dict[Hashable, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    norms: list[Tensor] = []
    for alike in kinds.values():
        norms += torch._foreach_norm(alike, 2, dtype=torch.promote_types(alike[0].dtype, torch.float32))
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
