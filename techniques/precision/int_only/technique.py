"""NITI: a tensor is int8 mantissas times one power of two, products are int8 with int32 sums, and so is the update.

Wang, Rasoulinezhad, Leong & So, "NITI: Training Integer Neural Networks Using Integer-only Arithmetic" (IEEE TPDS 2022,
arXiv 2009.13108), for the linear layers of a Transformer's blocks. With x, w and the gradient g of y as mantissas:

    y  = x w^T    dx = g w    dw = g^T x        int8 times int8 to int32; exponents are added
    w <- w - round(dw 2^mu / 2^r)               r = bits of the largest |dw|: it moves a weight by less than 2^mu

What is wider than the next operand is shifted right by as many bits as fit it into seven, and rounded stochastically:
``(v + u) >> s`` with u uniform in [0, 2^s) is v / 2^s on average, exactly. Pseudo-stochastic rounding, the paper's own,
takes the lower half of the bits that are shifted out for the random number that the upper half is compared with.

Between linear layers a Transformer has layer norms, softmax, GELU and sums with the residual stream. They stay in
floating point here, so that each layer maps what comes in to integers and what goes out back from them, as Ghaffari,
Tahaei, Tayaranian, Asgharian & Partovi Nia do in "Is Integer Arithmetic Enough for Deep Learning Training?" (NeurIPS
2022, arXiv 2207.08822).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, is_transposed, weight_matrix
from suite.record.job import StackError
from techniques.precision.shared.integer_product import integer_product

Rounding = Literal["stochastic", "pseudo", "nearest"]
BITS = 7  # of an operand's mantissa, beside its sign
SIGNIFICAND = 23  # bits of an integer that a floating-point number becomes before it is rounded: float32's own
FRACTION = 16  # bits behind the point of the length of a step
LONGEST_SUM = (2**31 - 1) // 127**2  # of products of two mantissas that int32 always holds


class Scaled(NamedTuple):
    """Holds ``mantissa``, integers, times two to the power of ``exponent``, an int32 scalar."""

    mantissa: Tensor
    exponent: Tensor

    def float(self) -> Tensor:
        return torch.ldexp(self.mantissa.float(), self.exponent)


def bit_length(v: Tensor) -> Tensor:
    """Counts the bits of the largest magnitude among integers, an int32 scalar; 0 where all are 0."""
    return torch.frexp(v.abs().amax().double())[1]


def shifted(v: Tensor, bits: Tensor | int, rounding: Rounding) -> Tensor:
    """Returns integers ``v``, int32 or int64, divided by 2^``bits`` and rounded. Draws from torch's generator where
    that is stochastic."""
    bits = torch.as_tensor(bits, dtype=v.dtype, device=v.device)
    if rounding == "stochastic":
        return (v + (torch.randint_like(v, torch.iinfo(v.dtype).max // 2 + 1) & ((1 << bits) - 1))) >> bits
    if rounding == "nearest":
        return (v + ((1 << bits) >> 1)) >> bits
    magnitude, half = v.abs(), bits // 2
    out = magnitude & ((1 << bits) - 1)
    random = (out & ((1 << half) - 1)) << (bits - 2 * half)
    return ((magnitude >> bits) + (out >> half > random)) * v.sign()


def narrowed(v: Scaled, bits: int, rounding: Rounding) -> Scaled:
    """Returns ``v`` with mantissas of at most ``bits`` bits and a sign. The largest is 2^bits - 1 after rounding up."""
    largest = v.mantissa.abs().amax()
    shift = (bit_length(v.mantissa) - bits).clamp(min=0)
    shift += (shift > 0) & (largest > (2**bits - 1 << shift.long()))  # it would round up to 2^bits
    return Scaled(shifted(v.mantissa, shift, rounding), v.exponent + shift)


def integers(x: Tensor, bits: int, rounding: Rounding) -> Scaled:
    """Returns floating-point ``x``, all of it finite, as mantissas of at most ``bits`` bits and a sign, int32."""
    exponent = (torch.frexp(x.abs().amax().float())[1] - SIGNIFICAND).clamp(min=-126)  # 2^126 is a float32
    return narrowed(Scaled(torch.ldexp(x.float(), -exponent).round().int(), exponent), bits, rounding)


def poison(x: Tensor) -> Tensor:
    """Returns 0, or NaN where something in ``x`` is not finite, which no integer is: what is made of it must not be,
    either."""
    largest = x.abs().amax()
    return largest - largest


def product(a: Tensor, b: Tensor) -> Tensor:
    """Computes a b^T for int8 ``a`` [m, k] and ``b`` [n, k], int32 [m, n].

    Raises ValueError where k is so large that a sum could leave int32.
    """
    (m, k), n = a.shape, b.shape[0]
    if k > LONGEST_SUM:
        raise ValueError(f"int32 holds sums of {LONGEST_SUM} products of int8, not of {k}: use smaller batches")
    if a.is_cuda:  # whose units take multiples of 8, and more than 16 rows
        a, b = F.pad(a, (0, -k % 8, 0, max(17 - m, 0))), F.pad(b, (0, -k % 8, 0, -n % 8))
        return torch._int_mm(a, b.T)[:m, :n]
    return integer_product(a, b.T)


class IntegerWeight(nn.Module):
    """Holds mantissas of ``bits`` bits, int8 or int16, and their exponent, int32; and their gradient until it is
    applied."""

    exponent: Tensor
    gradient: Tensor | None = None

    def __init__(self, weight: Tensor, bits: int) -> None:
        super().__init__()
        self.bits = bits
        mantissa, exponent = integers(weight.detach(), bits, "nearest")
        kind = torch.int8 if bits == BITS else torch.int16
        self.mantissa = nn.Parameter(mantissa.to(kind), requires_grad=False)
        self.register_buffer("exponent", exponent)

    @property
    def value(self) -> Scaled:
        return Scaled(self.mantissa, self.exponent)

    @torch.no_grad()
    def update(self, share: float, step_bits: float, rounding: Rounding) -> None:
        """Moves the mantissas against the gradient, none by more than ``share`` of 2^``step_bits``. Where one would
        need more bits than there are, all lose one, and the exponent is one more."""
        if self.gradient is None:
            return
        length = round(share * 2.0 ** (step_bits + FRACTION))
        step = shifted(self.gradient.long() * length, bit_length(self.gradient) + FRACTION, rounding)
        moved = narrowed(Scaled(self.mantissa.long() - step, self.exponent), self.bits, rounding)
        self.mantissa.copy_(moved.mantissa)
        self.exponent.copy_(moved.exponent)
        self.gradient = None


class IntegerProduct(torch.autograd.Function):
    """Computes x W^T for x [tokens, in] and an :class:`IntegerLinear`, whose weights get int32 gradients on the way
    back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: IntegerLinear, anchor: Tensor) -> Tensor:
        rounding = layer.rounding if layer.training else "nearest"
        a = integers(x, BITS, rounding)
        w = narrowed(layer.integers.value, BITS, "nearest")
        p, q = a.mantissa.to(torch.int8), w.mantissa.to(torch.int8)
        ctx.save_for_backward(p, q, w.exponent)
        ctx.layer, ctx.rounding, ctx.dtype = layer, rounding, x.dtype
        y = Scaled(product(p, q), a.exponent + w.exponent).float() + poison(x)
        if layer.offsets is not None:
            y += layer.offsets.value.float()
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (p, q, exponent), layer = ctx.saved_tensors, ctx.layer
        g = integers(gradient, BITS, ctx.rounding)
        r = g.mantissa.to(torch.int8)
        of_x = Scaled(product(r, q.T.contiguous()), g.exponent + exponent).float() + poison(gradient)
        layer.integers.gradient = product(r.T.contiguous(), p.T.contiguous())
        if layer.offsets is not None:
            layer.offsets.gradient = r.sum(0, dtype=torch.int32)
        return of_x.to(ctx.dtype), None, None


class IntegerLinear(nn.Module):
    """Replaces a linear layer by one all of whose tensors are integers. ``weight`` and ``bias`` are what they stand
    for, float32."""

    def __init__(self, linear: nn.Module, bits: int, rounding: Rounding) -> None:
        super().__init__()
        weight, bias = weight_matrix(linear), linear.bias
        self.out_features, self.in_features = weight.shape
        self.rounding = rounding
        self.integers = IntegerWeight(weight, bits)
        self.offsets = None if bias is None else IntegerWeight(bias, bits)  # type: ignore[arg-type]

    @property
    def weight(self) -> Tensor:
        return self.integers.value.float()

    @property
    def bias(self) -> Tensor | None:
        return None if self.offsets is None else self.offsets.value.float()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., in_features] -> [..., out_features]."""
        anchor = torch.empty(0, device=x.device, requires_grad=True)  # the weights learn where x needs no gradient, too
        y: Tensor = IntegerProduct.apply(x.reshape(-1, x.shape[-1]), self, anchor)
        return y.view(*x.shape[:-1], y.shape[-1])


@dataclass
class IntOnly(Technique):
    """Replaces the linear layers of all blocks, with their biases; embedding, norms and head train as in the recipe.

    ``accumulator_bits`` 8 keeps weights in int8; 16, which the paper needs on ImageNet, keeps them in int16, and the
    upper 8 bits are multiplied. ``step_bits`` is mu at the recipe's full learning rate, of an int8 mantissa, and falls
    with it.
    """

    takes: ClassVar[str] = "replaces the products of the same layers"
    accumulator_bits: Literal[8, 16] = 8
    step_bits: float = 4.0
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        if not -8 <= self.step_bits <= 6:
            raise ValueError(
                f"step_bits is mu, the bits of the largest step of a 7-bit mantissa: -8 to 6, not {self.step_bits:g}"
            )

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.world_size > 1:
            raise StackError(
                f"{run.job.stack} cannot be stacked: int_only moves integer weights by the gradients of one process, "
                "which no rank gets of another: leave out what makes several ranks"
            )
        parts = anatomy(model)
        for path, linear in parts.linears:
            if isinstance(linear, AroundLinear) or not (type(linear) is nn.Linear or is_transposed(linear)):
                raise ValueError(
                    f"int_only replaces nn.Linear and Conv1D, and {path} is a {type(linear).__name__}: leave out what "
                    "wraps it, or int_only"
                )
            parts.replace(path, IntegerLinear(linear, self.accumulator_bits - 1, self.rounding))
        return model

    def after_step(self, run: Run) -> None:
        share = run.recipe.learning_rate_at(run.step - 1) / run.recipe.learning_rate
        bits = self.step_bits + self.accumulator_bits - 8
        for module in run.model.modules():
            if isinstance(module, IntegerWeight):
                module.update(share, bits, self.rounding)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {path: module for path, module in run.model.named_modules() if isinstance(module, IntegerLinear)}
