"""Calls operators, each alone, through the dispatcher at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from suite.record.job import Size

aten = torch.ops.aten
Call = Callable[[], Any]


@dataclass(frozen=True)
class Ladder:
    """Lists the sizes that samples are of.

    Attributes:
        elements, width: of operators that move bytes, and of their rows.
        products: rows, inner and outer size; ``batched``: how many, and those of each.
        convolutions: of patches: examples, channels, side, outputs, side of a patch.
        attentions: examples, heads, length, width of a head.
        sizes: of the baselines whose whole steps are clocked.
    """

    elements: tuple[int, ...]
    width: int
    products: tuple[tuple[int, int, int], ...]
    batched: tuple[tuple[int, int, int, int], ...]
    convolutions: tuple[tuple[int, int, int, int, int], ...]
    attentions: tuple[tuple[int, int, int, int], ...]
    sizes: tuple[Size, ...]


LADDERS: Mapping[str, Ladder] = {
    "cpu": Ladder(
        (1 << 8, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20),
        64,
        (
            (64, 64, 64),
            (512, 48, 144),
            (1024, 48, 48),
            (1024, 192, 48),
            (768, 64, 128),
            (48, 768, 144),
            (64, 1024, 64),
            (1088, 96, 288),
            (1088, 384, 96),
            (96, 1088, 384),
            (256, 256, 256),
            (1024, 512, 512),
        ),
        (
            (64, 64, 64, 16),
            (128, 32, 32, 12),
            (128, 32, 12, 32),
            (192, 16, 16, 16),
            (256, 17, 17, 24),
            (4, 128, 128, 64),
        ),
        ((64, 1, 8, 96, 2), (32, 1, 8, 64, 2), (64, 3, 16, 64, 4)),
        (
            (32, 4, 32, 12),
            (32, 4, 16, 12),
            (64, 4, 32, 12),
            (64, 4, 17, 24),
            (32, 4, 17, 24),
            (32, 4, 17, 10),
            (16, 4, 17, 10),
            (48, 4, 16, 16),
            (32, 4, 9, 16),
            (32, 4, 17, 16),
            (8, 4, 128, 16),
            (16, 4, 64, 32),
        ),
        ("pico", "nano", "micro"),
    ),
    "cuda": Ladder(
        (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26),
        1024,
        (
            (512, 512, 512),
            (1024, 1024, 1024),
            (2048, 768, 3072),
            (4096, 768, 768),
            (4096, 1024, 4096),
            (8192, 1024, 1024),
            (8192, 4096, 1024),
            (4096, 4096, 4096),
            (8192, 4096, 4096),
            (8192, 8192, 8192),
            (1024, 8192, 4096),
            (4096, 1024, 50304),
        ),
        ((96, 1024, 1024, 64), (96, 1024, 64, 1024), (16, 512, 512, 64), (8, 2048, 2048, 128)),
        ((64, 3, 224, 768, 16), (16, 3, 224, 768, 16), (64, 3, 224, 1024, 14)),
        (
            (8, 12, 512, 64),
            (8, 12, 1024, 64),
            (4, 16, 2048, 64),
            (2, 16, 4096, 128),
            (4, 16, 1024, 72),
            (8, 16, 512, 72),
            (2, 16, 2048, 72),
            (1, 16, 4096, 72),
        ),
        ("base",),
    ),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.uint8, torch.int32)


@dataclass(frozen=True)
class _Maker:
    """Makes tensors of a type on a device, reproducibly."""

    device: str
    dtype: torch.dtype

    def __call__(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device).add_(0.5).to(self.dtype)

    def below(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, device=self.device)


def _pointwise(make: _Maker, n: int, width: int) -> Iterator[Call]:
    x, y, z = (make(n // width, width) for _ in range(3))
    ones, mask = torch.ones_like(x), y > 1  # of ones alone a product stays where it is
    unary = (
        "gelu",
        "tanh",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sigmoid",
        "silu",
        "relu",
        "neg",
        "abs",
        "sign",
        "erf",
        "floor",
        "round",
    )
    for name in unary:
        yield partial(getattr(aten, name), x)
    for name in ("add", "sub", "mul", "div", "maximum", "mul_", "div_", "lt", "eq", "ge", "ne", "copy_"):
        yield partial(getattr(aten, name), x, ones)
    for call in (aten.mul.Scalar, aten.pow.Tensor_Scalar, aten.gt.Scalar, aten.mul_.Scalar):
        yield partial(call, x, 1.0)
    yield partial(aten.add_, x, y, alpha=0.0)
    yield partial(aten.sub_, x, y, alpha=0.0)
    yield partial(aten.clamp, x, 0.1, 0.9)
    for name in ("clamp_", "clamp_min"):
        yield partial(getattr(aten, name), x, 0.1)
    yield from (partial(aten.round_, x), partial(aten.floor_, x), partial(aten.lerp.Scalar, x, ones, 0.5))
    for name in ("gelu_backward", "tanh_backward", "silu_backward", "sigmoid_backward"):
        yield partial(getattr(aten, name), x, y)
    yield partial(aten.threshold_backward, x, y, 0.0)
    yield partial(aten.addcmul_, x, y, z, value=0.0)
    yield partial(aten.addcdiv_, x, y, z, value=0.0)
    yield partial(aten.lerp_, x, y, 0.0)
    yield partial(aten.where.self, mask, y, z)
    yield partial(aten.masked_fill.Scalar, x, mask, 0.0)


def _moving(make: _Maker, n: int, width: int) -> Iterator[Call]:
    x, y = make(n // width, width), make(n // width, width)
    other = torch.bfloat16 if make.dtype is torch.float32 else torch.float32
    wide = x.to(other)
    yield partial(aten.clone, x)
    yield partial(aten.clone, x.t(), memory_format=torch.contiguous_format)
    yield partial(aten._to_copy, x, dtype=other)
    yield partial(aten.copy_, wide, x)
    yield partial(aten.cat, [x, y], -1)
    yield partial(aten.stack, [x, y])
    yield partial(aten.zero_, x)
    yield partial(aten.fill_.Scalar, x, 1.0)
    yield partial(aten.zeros_like, x)
    yield partial(aten.constant_pad_nd, x, [0, 1])
    yield partial(aten.slice_backward, x, [n // width, 2 * width], 1, 0, width, 1)
    yield partial(aten.select_backward, x, [n // width, 2, width], 1, 0)


def _reducing(make: _Maker, n: int, width: int) -> Iterator[Call]:
    x, y = make(n // width, width), make(n // width, width)
    weight, bias = make(width), make(width)
    yield partial(aten.sum, x)
    for call in (aten.sum.dim_IntList, aten.mean.dim, aten.amax):
        yield partial(call, x, [-1], True)
    yield partial(aten.amin, x, [-1], True)
    yield partial(aten.sum.dim_IntList, x, [0], True)
    yield partial(aten.max.dim, x, -1)
    yield partial(aten.argmax, x, -1)
    yield partial(aten.linalg_vector_norm, x)
    yield partial(aten.var_mean.correction, x, [-1])
    _, mean, deviation = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    yield partial(aten.native_layer_norm, x, [width], weight, bias, 1e-5)
    yield lambda: aten.native_layer_norm_backward(y, x, [width], mean, deviation, weight, bias, [True, True, True])
    for call, back in (
        (aten._softmax, aten._softmax_backward_data),
        (aten._log_softmax, aten._log_softmax_backward_data),
    ):
        yield partial(call, x, -1, False)
        yield partial(back, y, x, -1, make.dtype)
    targets, one = make.below(width, n // width), make()
    yield partial(aten.nll_loss_forward, x, targets, None, 1, -100)
    total = aten.nll_loss_forward(x, targets, None, 1, -100)[1]
    yield partial(aten.nll_loss_backward, one, x, targets, None, 1, -100, total)
    yield partial(aten.mse_loss, x, y)
    yield partial(aten.mse_loss_backward, one, x, y, 1)


def _choosing(make: _Maker, n: int, width: int) -> Iterator[Call]:
    rows = n // width
    x, table = make(rows, width), make(64, width)
    at, of_row = make.below(64, rows), make.below(width, rows, width)
    some = make.below(rows, max(1, rows // 2))
    chosen, zeros, mask = x[some], torch.zeros_like(x), x > 1
    yield partial(aten.embedding, table, at)
    yield partial(aten.embedding_dense_backward, x, at, 64, -1, False)
    yield partial(aten.index_select, x, 0, some)
    yield partial(aten.index.Tensor, x, [some])
    yield partial(aten.index_put_, x, [some], chosen)
    yield partial(aten.gather, x, 1, of_row)
    yield partial(aten.scatter_add_, x, 1, of_row, zeros)
    yield partial(aten.scatter_.value, x, 1, of_row, 0.0)
    yield partial(aten.topk, x, width // 2)
    yield partial(aten.sort, x)
    yield partial(aten.cumsum, x, -1)
    yield partial(aten.native_dropout, x, 0.1, True)
    yield partial(aten.native_dropout_backward, x, mask, 1.1)
    yield partial(aten.bernoulli_.float, x, 0.9)
    yield partial(aten.rand, [rows, width], device=make.device, dtype=make.dtype)
    yield partial(aten.scatter_add, x, 1, of_row, zeros)
    yield partial(aten.uniform_, x)
    yield partial(aten.normal_, x)


def _whole(make: _Maker, n: int, width: int) -> Iterator[Call]:
    """Yields operators on whole numbers, by which tensors are compressed."""
    for dtype in WHOLE:
        a, b = (make.below(100, n // width, width).to(dtype) for _ in range(2))
        for name in ("add", "add_", "mul", "bitwise_and", "bitwise_or_", "__lshift__", "__rshift__", "gt", "copy_"):
            yield partial(getattr(aten, name), a, torch.ones_like(b))
        yield partial(aten.abs, a)
        yield partial(aten.amax, a, [-1], True)
        yield partial(aten.sum, a)
        yield partial(aten.constant_pad_nd, a, [0, 1])
        yield partial(aten._to_copy, a, dtype=make.dtype)
        yield partial(aten._to_copy, make(n // width, width), dtype=dtype)
        yield partial(aten.randint_like, a, 100)


def _updating(make: _Maker, n: int, width: int) -> Iterator[Call]:
    """Lists of few tensors and of many, as a model has parameters."""
    yield from _listed(make, n, 4)
    yield from _listed(make, n, 64)


def _listed(make: _Maker, n: int, tensors: int) -> Iterator[Call]:
    x, y, z, v = ([make(max(1, n // tensors)) for _ in range(tensors)] for _ in range(4))
    steps = [torch.ones((), device=make.device) for _ in x]
    yield partial(aten._foreach_add_.List, x, y, alpha=0.0)
    yield partial(aten._foreach_mul_.Scalar, x, 1.0)
    yield partial(aten._foreach_mul_.Tensor, x, steps[0])
    yield partial(aten._foreach_lerp_.Scalar, x, y, 0.0)
    yield partial(aten._foreach_addcmul_.Scalar, x, y, z, 0.0)
    yield partial(aten._foreach_addcdiv_.Scalar, x, y, z, 0.0)
    yield partial(aten._foreach_sqrt, x)
    yield partial(aten._foreach_norm.Scalar, x)
    yield lambda: aten._fused_adamw_(
        x, y, z, v, [], steps, lr=0.0, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )


def _multiplying(make: _Maker, ladder: Ladder) -> Iterator[Call]:
    for rows, inner, outer in ladder.products:
        a, b, bias = make(rows, inner), make(inner, outer), make(outer)
        turned = make(outer, inner).t()
        yield partial(aten.mm, a, b)
        yield partial(aten.mm, a, turned)
        yield partial(aten.addmm, bias, a, turned)
    for batch, m, n, k in ladder.batched:
        a, b = make(batch, m, k), make(batch, k, n)
        yield partial(aten.bmm, a, b)
    for batch, channels, side, outer, patch in ladder.convolutions:
        x, weight, bias = make(batch, channels, side, side), make(outer, channels, patch, patch), make(outer)
        more = ([patch, patch], [0, 0], [1, 1], False, [0, 0], 1)
        yield partial(aten.convolution, x, weight, bias, *more)
        gradient = torch.ones_like(aten.convolution(x, weight, bias, *more))
        yield partial(aten.convolution_backward, gradient, x, weight, [outer], *more, [True, True, True])
    for shape in ladder.attentions:
        yield from _attending(make, shape)


def _attending(make: _Maker, shape: tuple[int, int, int, int]) -> Iterator[Call]:
    """Yields fused attention as autograd asks for it on the device, and its backward pass."""
    q, k, v = (make(*shape).requires_grad_() for _ in range(3))
    plain: Any = [tensor.detach() for tensor in (q, k, v)]
    yield lambda: torch.nn.functional.scaled_dot_product_attention(*plain)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    gradient = make(*shape)
    yield lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def calls(device: str, dtype: torch.dtype) -> Iterator[Call]:
    """Yields each operator, alone, at each size, the smallest first. An operator that refuses the type raises when
    called."""
    ladder, make = LADDERS[device], _Maker(device, dtype)
    for n in ladder.elements:
        for some in (_pointwise, _moving, _reducing, _choosing, _updating):
            yield from some(make, n, ladder.width)
        if dtype is torch.float32:
            yield from _whole(make, n, ladder.width)
    yield from _multiplying(make, ladder)
