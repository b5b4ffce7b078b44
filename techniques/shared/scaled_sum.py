"""Computes x + s b of a residual stream, a branch and its scale, in one pass on a GPU: for what ends branches in a
scale.

The scale, a number or a vector over the width, stands where a branch ends, and the addition in the model's own code,
some lines later. So on a GPU the branch leaves as a :class:`Pending` product. Dropout passes it on, since it commutes
with the scale; what adds it to the stream launches the kernel (:mod:`techniques.shared.residual_kernel` for a number,
:mod:`techniques.shared.residual_vector_kernel` for a vector); whatever else a model does with it, it does with the
product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.utils._pytree import tree_map

SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}


def scaled(branch: Tensor, scale: Tensor) -> Any:
    """Returns ``branch`` [..., width] times ``scale`` [1] or [width], in the branch's dtype.

    On a GPU, where a kernel takes them, a :class:`Pending`. The compiler fuses by itself.
    """
    pending = Pending(branch, scale)
    return pending if not is_compiling() and launchable(branch) else pending.product


def launchable(*tensors: Tensor) -> bool:
    """Tells whether a kernel takes these tensors. Loads Triton for CUDA tensors only."""
    if not tensors[0].is_cuda:
        return False
    from suite.kernels import optimizer_parts

    return optimizer_parts.launchable(tensors)


def _kernels(scale: Tensor) -> Any:
    from techniques.shared import residual_kernel, residual_vector_kernel

    return residual_kernel if scale.numel() == 1 else residual_vector_kernel


class ScaledSum(torch.autograd.Function):
    """Runs the kernels' two passes. ``apply(stream, branch, scale)``: tensors as in the kernels' modules."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(branch, scale)
        ctx.dtype = stream.dtype
        summed: Tensor = _kernels(scale).scaled_sum(stream, branch, scale)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        branch, scale = ctx.saved_tensors
        of_branch, of_scale = _kernels(scale).gradients(gradient.contiguous(), branch, scale)
        return gradient.to(ctx.dtype), of_branch, of_scale


def _of_the_product(operator: str) -> Any:
    """Makes a method of :class:`Pending`: Python looks operators up in the class, past ``__getattr__``."""
    return lambda self, *others: getattr(self.product, operator)(*others)


class Pending:
    """Holds a product of a branch and its scale that is not made yet. Torch's operators and the product's own
    attributes make it; dropout and a sum with a stream do not."""

    def __init__(self, branch: Tensor, scale: Tensor) -> None:
        self.branch, self.scale = branch, scale

    @property
    def product(self) -> Tensor:
        return self.branch * self.scale.to(self.branch.dtype)  # under autocast the branch stays in its low precision

    def __add__(self, stream: Any) -> Tensor:
        together = isinstance(stream, Tensor) and stream.shape == self.branch.shape
        fits = self.scale.numel() in (1, self.branch.shape[-1] if self.branch.ndim else 1)
        if together and fits:
            # A ViT's first stream is its convolution's output transposed: in order only where that was channels-last.
            ordered = stream.contiguous()
            if launchable(ordered, self.branch, self.scale):
                added: Tensor = ScaledSum.apply(ordered, self.branch, self.scale)
                return added
        return self.product + stream

    __radd__ = __add__

    def __getattr__(self, name: str) -> Any:
        if name in ("branch", "scale"):  # before __init__ has run, e.g. while copying
            raise AttributeError(name)
        return getattr(self.product, name)

    __mul__, __rmul__, __truediv__, __sub__, __rsub__, __neg__, __matmul__, __getitem__ = map(
        _of_the_product,
        ("__mul__", "__rmul__", "__truediv__", "__sub__", "__rsub__", "__neg__", "__matmul__", "__getitem__"),
    )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in SUMS and len(args) == 2 and not kwargs:
            one, other = args
            return one + other if isinstance(one, cls) else other + one
        if function is F.dropout and isinstance(args[0], cls):
            return cls(F.dropout(args[0].branch, *args[1:], **kwargs), args[0].scale)
        args, kwargs = tree_map(
            lambda argument: argument.product if isinstance(argument, cls) else argument, (args, kwargs)
        )
        return function(*args, **kwargs)
