"""Runs Mesa's layers on a GPU: LayerNorm, GELU and softmax by kernels that write the codes beside the output.

Where a block calls one of them, and the ranges of its tensor run already: so from the second step on. All else goes
through the saved-tensor hooks, and so do these where a kernel does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from techniques.activation_compression.mesa import fused_kernel as kernel
from techniques.activation_compression.mesa.codes import LEVELS, Codes, scales
from techniques.activation_compression.shared.saved_tensors import Forward, head_wise, is_activation
from techniques.shared.scaled_sum import launchable

if TYPE_CHECKING:
    from techniques.activation_compression.mesa.technique import Mesa


class Coded:
    """Holds what a kernel codes with: the place's running ranges, and a seed of the step's noise."""

    def __init__(self, own: Mesa, forward: Forward, shape: torch.Size, noise: torch.Generator, device: Any) -> None:
        self.own, self.forward, self.place = own, forward, forward.place
        self.sizes = head_wise(shape, self.place)
        self.noise, self.device = noise, device

    @property
    def ready(self) -> bool:
        running = self.own.statistics.get(self.place.name)
        return self.own.decay > 0 and running is not None and running.shape == (2, self.sizes[1])

    def begin(self) -> tuple[Tensor, Tensor]:
        """Returns the table to code with, and the seed."""
        self.clip = self.own.statistics[self.place.name]
        seed = torch.randint(2**31 - 1, (1,), generator=self.noise, device=self.device, dtype=torch.int32)
        return torch.stack([self.clip[0], scales(self.clip)]), seed

    def end(self, ctx: Any, tensor: Tensor, codes: Tensor, now: Tensor) -> None:
        """Notes the batch's ranges, and the codes for whoever saves the tensor as well."""
        self.own.follow(self.place.name, now)
        self.own.act(self.place)
        self.forward.number += 1
        ctx.codes = Codes(codes, self.clip, tensor.dtype)
        self.forward.put(tensor, ctx.codes)

    def table(self) -> Tensor:
        """Returns the table to decode with on the way back."""
        return torch.stack([self.clip[0], self.clip[1] / LEVELS])


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh: bool, coded: Coded) -> Tensor:
        y, codes, now = kernel.gelu(x, coded.sizes, *coded.begin(), tanh)
        coded.end(ctx, x, codes, now)
        ctx.save_for_backward(codes)
        ctx.tanh, ctx.coded = tanh, coded
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (codes,), coded = ctx.saved_tensors, ctx.coded
        return kernel.gelu_back(codes, gradient.contiguous(), coded.sizes, coded.table(), ctx.tanh), None, None


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coded: Coded) -> Tensor:
        y, codes, now = kernel.softmax(x, coded.sizes, *coded.begin())
        coded.end(ctx, y, codes, now)
        ctx.save_for_backward(codes)
        ctx.coded = coded
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (codes,), coded = ctx.saved_tensors, ctx.coded
        return kernel.softmax_back(codes, gradient.contiguous(), coded.sizes, coded.table()), None


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype, coded: Coded
    ) -> Tensor:
        groups, (table, seed) = coded.sizes[1], coded.begin()
        y, means, scales, codes, now = kernel.layer_norm(x, weight, bias, epsilon, groups, table, seed, dtype)
        coded.end(ctx, x, codes, now)
        ctx.save_for_backward(codes, weight, means, scales)
        ctx.coded, ctx.dtypes = coded, (x.dtype, weight.dtype, bias.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (codes, weight, means, scales), coded = ctx.saved_tensors, ctx.coded
        of_x, of_weight, of_bias = kernel.layer_norm_back(
            codes, gradient.contiguous(), weight, means, scales, coded.sizes[1], coded.table(), ctx.dtypes[0]
        )
        return of_x, of_weight.to(ctx.dtypes[1]), of_bias.to(ctx.dtypes[2]), None, None, None


class Fused(TorchFunctionMode):
    """Replaces layers by the fused ones while it is active, in a block's forward."""

    def __init__(self, own: Mesa, forward: Forward, noise: torch.Generator) -> None:
        super().__init__()
        self.own, self.forward, self.noise = own, forward, noise

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        fuse = LAYERS.get(getattr(function, "__name__", ""))
        x = args[0] if args else None
        if fuse and isinstance(x, Tensor) and self.fits(x):
            coded = Coded(self.own, self.forward, x.shape, self.noise, x.device)
            output = fuse(coded, *args, **kwargs) if coded.ready else None
            if output is not None:
                return output
        return function(*args, **kwargs)

    def fits(self, x: Tensor) -> bool:
        return (
            launchable(x)
            and is_activation(x)
            and x.is_contiguous()
            and x.shape[-1] <= kernel.LONGEST_ROW
            and self.forward.kept_of(x) is None
        )


def gelu(coded: Coded, x: Tensor, approximate: str = "none") -> Tensor:
    return Gelu.apply(x, approximate == "tanh", coded)


def softmax(coded: Coded, x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor | None:
    along_rows = dim in (-1, x.ndim - 1) and coded.sizes[2] % x.shape[-1] == 0
    if not along_rows or dtype not in (None, x.dtype) or _autocast(x):
        return None
    return Softmax.apply(x, coded)


def layer_norm(
    coded: Coded, x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Tensor | None:
    of_channels = coded.sizes[1] * coded.sizes[2] == x.shape[-1]
    if len(normalized_shape) != 1 or weight is None or bias is None or not of_channels:
        return None
    dtype = torch.float32 if _autocast(x) else x.dtype
    return LayerNorm.apply(x, weight, bias, eps, dtype, coded)


LAYERS: dict[str, Any] = {"gelu": gelu, "softmax": softmax, "layer_norm": layer_norm}


def _autocast(x: Tensor) -> bool:
    """Tells whether autocast is on, under which both softmax and LayerNorm give float32."""
    return x.dtype != torch.float32 and torch.is_autocast_enabled(x.device.type)
