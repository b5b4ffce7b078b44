"""Implements FP8 training: a linear layer's three products have operands of eight bits, E4M3 forth and E5M2 for
gradients.

Micikevicius et al., "FP8 Formats for Deep Learning" (2022, arXiv 2209.05433): the formats, and a scale for each tensor,
which software keeps. With X [tokens, in], W [out, in] and G, the gradient of Y, [tokens, out]:

    Y  = X W^T      E4M3, E4M3      four bits of exponent, three of mantissa, up to 448
    dX = G W        E5M2, E4M3      five bits of exponent, two of mantissa, up to 57344
    dW = G^T X      E5M2, E4M3

A tensor is scaled before it is cast, s = (largest of the format / amax) / 2^margin, and what lies beyond the format is
clipped. amax is the tensor's own largest magnitude (dynamic scaling), which takes a pass of its own, or the largest of
previous steps (delayed scaling, as Transformer Engine has it): then the pass that casts finds amax for later steps.
Sums, outputs, weights and their gradients stay as they were.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, in_features, out_features, weight_matrix
from techniques.precision.shared.replaced_products import plain_linear

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = (E4M3, E4M3, E5M2)
INPUT, WEIGHT, GRADIENT = range(3)
LARGEST_SCALE = 2.0**126  # the inverse of a larger one would not be a normal number
MULTIPLE = 16  # of both sizes of a weight: what tensor cores take
NAN = float("nan")
Scaling = Literal["delayed", "dynamic"]


def scale_of(amax: Tensor, largest: Tensor, margin: int = 0) -> Tensor:
    """Computes (largest / amax) / 2^margin, of float32 tensors: torch multiplies a number by the inverse, which is
    rounded, too. 1 where ``amax`` is 0 or not finite and says nothing."""
    usable = (amax > 0) & amax.isfinite()
    return torch.where(usable, (largest / amax / 2**margin).clamp(max=LARGEST_SCALE), 1.0)


class Cast(NamedTuple):
    """Holds a matrix in eight bits: ``rows`` [m, k]; its transpose ``columns``, an array of its own, since products
    read both operands by rows, [k, m], with m filled up to a multiple of 16 by zeros on a GPU; and what both are to be
    multiplied by, float32 []."""

    rows: Tensor
    columns: Tensor
    inverse: Tensor


def cast(x: Tensor, dtype: torch.dtype, known: Tensor, margin: int = 0, seen: Tensor | None = None) -> Cast:
    """Returns ``x`` [m, k] times its scale, clipped and rounded to the nearest number of ``dtype``.

    The scale is ``known``, float32 [], or the tensor's own where that is 0. ``seen``, float32 [], becomes the largest
    magnitude of ``x`` if it was smaller. An infinity becomes NaN, which no scale hides.
    """
    if x.is_cuda and multiplies_eight_bits(x.device):
        from techniques.precision.fp8_hybrid.kernel import cast_both  # loads Triton

        return Cast(*cast_both(x, dtype, known, margin, seen))
    largest = torch.finfo(dtype).max
    amax = x.abs().amax().float() if x.numel() else known.new_zeros(())
    scale = torch.where(known > 0, known, scale_of(amax, known.new_full((), largest), margin))
    wide = x.float().nan_to_num(NAN, NAN, NAN)  # a copy, so that x stays
    rows = wide.mul_(scale).clamp_(-largest, largest).to(dtype)
    if seen is not None:
        seen.copy_(torch.maximum(seen, amax))
    return Cast(rows, rows.T.contiguous(), 1 / scale)


@cache
def multiplies_eight_bits(device: torch.device) -> bool:
    """Tells whether torch multiplies matrices of eight bits here: on the CPU, and on GPUs from Ada and Hopper on."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 9)
    return device.type == "cpu"


def product(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, dtype: torch.dtype, fast: bool = False) -> Tensor:
    """Computes a b^T for eight-bit ``a`` [m, k] and ``b`` [n, k], times both factors; [m, n] in ``dtype``.

    Sums are float32; ``fast`` lets Hopper's units keep fewer of their bits. Where no unit multiplies eight bits, the
    same numbers are multiplied in float32.
    """
    if multiplies_eight_bits(a.device):
        written = dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32
        y = torch._scaled_mm(a, b.T, scale_a=of_a, scale_b=of_b, out_dtype=written, use_fast_accum=fast)
        return y.to(dtype)
    with torch.autocast(a.device.type, enabled=False):
        return (a.float() @ b.float().T).mul_(of_a).mul_(of_b).to(dtype)


class Scales(NamedTuple):
    """Holds, of a layer's input, weight and output gradient: the scales of this step, float32 [3], 0 where there is
    none yet; what the step has ``seen`` of their magnitudes, float32 [3], or None where that is not asked for."""

    known: Tensor
    seen: Tensor | None
    margin: int

    def cast(self, x: Tensor, which: int) -> Cast:
        seen = None if self.seen is None else self.seen[which]
        return cast(x, FORMATS[which], self.known[which], self.margin, seen)


class Float8Product(torch.autograd.Function):
    """Computes X W^T in ``dtype`` for x [tokens, in] and weight [out, in]. ``apply(x, weight, scales, dtype)``.

    What waits for the backward pass is eight bits a number, too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        p, q = scales.cast(x, INPUT), scales.cast(weight, WEIGHT)
        ctx.save_for_backward(p.columns, q.columns, p.inverse, q.inverse)
        ctx.scales, ctx.dtypes = scales, (x.dtype, weight.dtype)
        return product(p.rows, q.rows, p.inverse, q.inverse, dtype, fast=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, of_x, of_weight = ctx.saved_tensors
        g = ctx.scales.cast(gradient, GRADIENT)
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = product(g.rows, weight, g.inverse, of_weight, gradient.dtype)
        if ctx.needs_input_grad[1]:
            dweight = product(g.columns, x, g.inverse, of_x, ctx.dtypes[1])
        return dx, dweight, None, None


class Float8Linear(AroundLinear):
    """Replaces a linear layer by one whose products have operands of eight bits; its weight stays as it is.

    ``history`` is of how many steps scales know the magnitudes: in a loop of your own call :func:`renew` after every
    update. With 0 each tensor has its own scale, and nothing is to be done. An empty history does not know a scale
    either: what is cast first has its own. What runs several times in a step counts with its largest magnitude.
    """

    scales: Tensor
    seen: Tensor
    history: Tensor

    def __init__(self, linear: nn.Module, history: int = 1024, margin: int = 0) -> None:
        super().__init__(linear)
        self.margin = margin
        device = weight_matrix(linear).device
        self.register_buffer("scales", torch.zeros(3, device=device))
        self.register_buffer("seen", torch.zeros(3, device=device))
        self.register_buffer("history", torch.zeros(3, history, device=device))  # the last step's first

    def _apply(self, fn: Any, recurse: bool = True) -> Float8Linear:
        """Scales stay float32 where the model becomes another type."""
        super()._apply(fn, recurse)
        self._buffers.update({name: buffer.float() for name, buffer in self._buffers.items() if buffer is not None})
        return self

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, device = weight_matrix(self.linear), self.linear.bias, x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        looks = self.history.shape[1] and self.training and torch.is_grad_enabled()
        scales = Scales(self.scales, self.seen if looks else None, self.margin)
        y: Tensor = Float8Product.apply(x.reshape(-1, x.shape[-1]), weight, scales, dtype)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if bias is None else y + bias.to(y.dtype)  # type: ignore[operator]


@torch.no_grad()
def renew(layers: Sequence[Float8Linear], group: ProcessGroup | None = None) -> None:
    """Renews histories and scales after an update: what the step has seen is in the histories, and the scales are the
    next step's.

    Of several ranks all get the largest. What is not finite is not remembered: it would be in the way of 1024 steps.
    """
    seen = torch.stack([layer.seen for layer in layers])
    seen = torch.where(seen.isfinite(), seen, 0.0)
    if group is not None:
        torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX, group=group)
    histories = torch.stack([layer.history for layer in layers]).roll(1, -1)
    histories[..., 0] = seen
    amax = histories.amax(-1)
    largest = amax.new_tensor([torch.finfo(tensor).max for tensor in FORMATS])
    scales = torch.where(amax > 0, scale_of(amax, largest, layers[0].margin), 0.0)
    torch._foreach_copy_([layer.history for layer in layers], list(histories))
    torch._foreach_copy_([layer.scales for layer in layers], list(scales))
    torch._foreach_zero_([layer.seen for layer in layers])


def fits(linear: nn.Module) -> bool:
    """Tells whether tensor cores take its weight."""
    return in_features(linear) % MULTIPLE == out_features(linear) % MULTIPLE == 0


@dataclass
class Float8Hybrid(Technique):
    """Works in every linear layer of every block whose sizes are multiples of 16; embedding and head stay as they are.

    ``amax_history`` and ``margin`` are Transformer Engine's defaults, as the algorithm is: the largest of the history.
    """

    takes: ClassVar[str] = "replaces the products of the same layers"
    scaling: Scaling = "delayed"
    amax_history: int = 1024
    margin: int = 0

    def __post_init__(self) -> None:
        if self.scaling not in get_args(Scaling):
            raise ValueError(f"scaling must be delayed or dynamic, not {self.scaling!r}")
        if self.amax_history < 1:
            raise ValueError(
                f"amax_history is 1 step or more, not {self.amax_history}: without one use dynamic scaling"
            )
        if not 0 <= self.margin <= 8:
            raise ValueError(f"margin is 0 to 8 powers of two, which the formats can spare, not {self.margin}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        layers = [plain_linear(part, "fp8_hybrid") for part in parts.linears]
        left = [part.path for part in layers if not fits(part.module)]
        if len(left) == len(layers):
            raise ValueError(
                f"fp8_hybrid takes linear layers whose sizes are multiples of {MULTIPLE}, and this model's blocks have "
                "none: choose such a width, or leave it out"
            )
        if left:
            warnings.warn(
                f"fp8_hybrid leaves {len(left)} of {len(layers)} linear layers as they are, whose sizes are no "
                f"multiples of {MULTIPLE}: {', '.join(left)}",
                stacklevel=2,
            )
        history = self.amax_history if self.scaling == "delayed" else 0
        for path, linear in layers:
            if path not in left:
                parts.replace(path, Float8Linear(linear, history, self.margin))
        return model

    def after_step(self, run: Run) -> None:
        if self.scaling == "delayed":
            renew(list(_layers(run.model).values()), run.group if run.mesh is not None else None)

    def probes(self, run: Run) -> Mapping[str, float]:
        return {"emulated": float(not multiplies_eight_bits(run.device))}

    def sites(self, run: Run) -> Mapping[str, Site]:
        return _layers(run.model)


def _layers(model: nn.Module) -> dict[str, Float8Linear]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Float8Linear)}
