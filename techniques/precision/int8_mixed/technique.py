"""Implements SwitchBack: two of a linear layer's three products in int8, the gradient of the weight in the layer's own
precision.

Wortsman, Dettmers, Zettlemoyer, Morcos, Farhadi & Schmidt, "Stable and low-precision training for large-scale
vision-language models" (NeurIPS 2023, arXiv 2304.13013), algorithm 1. With X [tokens, in], W [out, in] and G, the
gradient of Y, [tokens, out]:

    Y  = X W^T      int8: X by rows, W as a whole
    dX = G W        int8: G by rows, W as a whole
    dW = G^T X      as it was: its inner dimension is all tokens of the batch, and the noise of int8 grows with it

A list of numbers x becomes integers, x ~ s q with s = max |x| / 127 and q = round(x / s). Integers are multiplied with
sums in int32, which are exact, and the product of two rows is multiplied by their two scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import AroundLinear, anatomy, weight_matrix
from techniques.precision.shared.integer_product import integer_product
from techniques.precision.shared.replaced_products import plain_linear

LARGEST = 127  # symmetric: -128 is left out
LONGEST_SUM = (2**31 - 1) // LARGEST**2  # of products of two such integers that int32 always holds
Scales = Literal["row", "tensor"]


def quantized(x: Tensor, scales: Scales = "row") -> tuple[Tensor, Tensor]:
    """Returns ``x`` [rows, columns] as int8 in [-127, 127], and what they are to be multiplied by, float32 [rows, 1].

    A row with a NaN or an infinity has a scale that is not finite, which spoils its products.
    """
    x = x.float()
    magnitudes = x.abs()
    largest = magnitudes.amax(1, keepdim=True) if scales == "row" else magnitudes.amax().expand(x.shape[0], 1)
    scale = (largest / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale).round_().to(torch.int8), scale


def int8_product(a: Tensor, b: Tensor, b_scales: Scales = "row") -> Tensor:
    """Computes a b^T for ``a`` [m, k] and ``b`` [n, k], both rounded to int8 first; [m, n] in the dtype of ``a``.

    Raises ValueError where k is so large that a sum could leave int32.
    """
    if a.shape[1] > LONGEST_SUM:
        fits = f"int32 holds sums of {LONGEST_SUM} products of int8, not of {a.shape[1]}"
        raise ValueError(f"{fits}: use smaller batches, or grad_weight=false")
    (p, s), (q, t) = quantized(a), quantized(b, b_scales)
    if a.is_cuda:
        from techniques.precision.int8_mixed.kernel import scaled_product  # loads Triton

        return scaled_product(p, q, s, t, a.dtype)
    return integer_product(p, q.T).float().mul_(s).mul_(t.T).to(a.dtype)


class Products(NamedTuple):
    """Says which of a layer's products are int8, and whether the weight has a scale a row or one in all."""

    output: bool
    grad_input: bool
    grad_weight: bool
    weight_scale: Scales


class MixedProduct(torch.autograd.Function):
    """Computes X W^T for x [tokens, in] and weight [out, in] of one dtype. ``apply(x, weight, products)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, products: Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products
        return int8_product(x, weight, products.weight_scale) if products.output else x @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), products = ctx.saved_tensors, ctx.products
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            int8 = products.grad_input
            of_x = int8_product(gradient, weight.T, products.weight_scale) if int8 else gradient @ weight
        if ctx.needs_input_grad[1]:
            of_weight = int8_product(gradient.T, x.T) if products.grad_weight else gradient.T @ x
        return of_x, of_weight, None


class Int8Linear(AroundLinear):
    """Replaces a linear layer by one some of whose products are int8; its weight stays as it is."""

    def __init__(self, linear: nn.Module, products: Products) -> None:
        super().__init__(linear)
        self.products = products

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, device = weight_matrix(self.linear), self.linear.bias, x.device.type
        if torch.is_autocast_enabled(device):
            x, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (x, weight))
        y: Tensor = MixedProduct.apply(x.reshape(-1, x.shape[-1]), weight, self.products)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if bias is None else y + bias.to(y.dtype)  # type: ignore[operator]


@dataclass
class Int8Mixed(Technique):
    """Works in every linear layer of every block, as in the paper; embedding and head stay as they are.

    ``output``, ``grad_input`` and ``grad_weight`` say which products are int8. The paper's layer leaves the third out;
    with it, and with ``weight_scale=row``, this is the layer of LLM.int8() that the paper compares with, and torchao's.
    """

    takes: ClassVar[str] = "replaces the products of the same layers"
    output: bool = True
    grad_input: bool = True
    grad_weight: bool = False
    weight_scale: Scales = "tensor"
    zero_strength: ClassVar[Mapping[str, Any]] = {"output": False, "grad_input": False, "grad_weight": False}

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.device.type == "cuda":
            import techniques.precision.int8_mixed.kernel  # noqa: F401 - from here on counters know its FLOPs
        parts = anatomy(model)
        products = Products(self.output, self.grad_input, self.grad_weight, self.weight_scale)
        for path, linear in [] if self.is_reference else [plain_linear(part, "int8_mixed") for part in parts.linears]:
            parts.replace(path, Int8Linear(linear, products))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {path: module for path, module in run.model.named_modules() if isinstance(module, Int8Linear)}
