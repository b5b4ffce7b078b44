"""Computes block-sparse products: a linear layer whose mask keeps whole b x b blocks multiplies those blocks and no
others.

    Y  = X W^T      the kept blocks of a dense X's columns        (DSD)
    dX = G W        the same blocks, the other way round          (DSD, transposed)
    dW = G^T X      at the kept blocks only                       (SDD)

Gray, Radford & Kingma, "GPU Kernels for Block-Sparse Weights" (2017). Weight and gradient stay whole tensors that are 0
outside, so that optimizers, masks and checkpoints are those of a masked layer, and results are its own up to the order
of sums. What grows connections by their dense gradient asks for it in the steps that do (``dense_gradient``).

On a GPU the products are kernels (:mod:`shared.block_sparse_kernel`). On a CPU each run of adjacent blocks
is one product of views, added to where its sums belong: nothing is gathered. Of what PyTorch gives that is the fastest
in float32: products with a matrix in its block-sparse layout (BSR) take 2 to 50 times as long, gathered blocks up to 5
times. float16 and bfloat16 are widened there. For ``rigl``, ``set``, ``snip`` and ``grasp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.utils.flop_counter import register_flop_formula
from torch.utils.weak import WeakTensorKeyDictionary

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.model.anatomy import AroundLinear, Part, anatomy, in_features, is_transposed, out_features
from techniques.shared.sparse.masks import MASK, Masked, prunable

Execution = Literal["masked", "block_sparse"]
NARROW = (torch.float16, torch.bfloat16)
T = TypeVar("T")


# the products -------------------------------------------------------------------------------------------------------


class OfMask(Generic[T]):
    """Keeps what ``function`` says of a mask and its blocks' side, asked again only where the mask has changed in
    place."""

    def __init__(self, function: Callable[[Tensor, int], T]) -> None:
        self.function, self._known = function, WeakTensorKeyDictionary()

    def __call__(self, mask: Tensor, block: int) -> T:
        state, answer = self._known.get(mask, (None, None))
        if state != (mask._version, block):
            answer = self.function(mask, block)
            self._known[mask] = (mask._version, block), answer
        known: T = answer
        return known


@OfMask
def runs(mask: Tensor, block: int) -> list[tuple[slice, slice]]:
    """Returns rows and columns of each longest run of kept blocks in a row of blocks of ``mask`` [n, m]."""
    each_run = []
    for row, blocks in enumerate(mask[::block, ::block].tolist()):
        first = 0
        for column, here in enumerate([*blocks, False]):
            if not here:
                if column > first:
                    each_run.append((slice(row * block, (row + 1) * block), slice(first * block, column * block)))
                first = column + 1
    return each_run


def product(x: Tensor, weight: Tensor, mask: Tensor, block: int, transposed: bool) -> Tensor:
    """Computes X W^T, or X W where ``transposed``, of ``x`` [tokens, in] and the blocks of ``weight`` that ``mask``
    keeps.

    ``weight`` and ``mask`` are [n, m]; n and m are multiples of ``block``, whose b x b entries are all kept or none.
    """
    y: Tensor = (_product if is_compiling() or x.is_cuda else product_of_views)(x, weight, mask, block, transposed)
    return y


def weight_gradient(left: Tensor, right: Tensor, mask: Tensor, block: int) -> Tensor:
    """Computes left^T right of ``left`` [tokens, n] and ``right`` [tokens, m] at the blocks that ``mask`` keeps, else
    0."""
    gradient: Tensor = (_gradient if is_compiling() or left.is_cuda else gradient_of_views)(left, right, mask, block)
    return gradient


def product_of_views(x: Tensor, weight: Tensor, mask: Tensor, block: int, transposed: bool) -> Tensor:
    """Computes the same as :func:`product`, by PyTorch's operators."""
    if x.dtype in NARROW:
        return product_of_views(x.float(), weight.float(), mask, block, transposed).to(x.dtype)
    y = x.new_zeros(x.shape[0], weight.shape[1 if transposed else 0])
    for rows, columns in runs(mask, block):
        part = weight[rows, columns]
        if transposed:
            y[:, columns].addmm_(x[:, rows], part)
        else:
            y[:, rows].addmm_(x[:, columns], part.T)
    return y


def gradient_of_views(left: Tensor, right: Tensor, mask: Tensor, block: int) -> Tensor:
    """Computes the same as :func:`weight_gradient`, by PyTorch's operators."""
    if left.dtype in NARROW:
        return gradient_of_views(left.float(), right.float(), mask, block).to(left.dtype)
    gradient = left.new_zeros(mask.shape)
    for rows, columns in runs(mask, block):
        torch.mm(left[:, rows].T, right[:, columns], out=gradient[rows, columns])
    return gradient


# One operator each, for kernels and for graphs, which see no values and so no blocks. On a CPU it would only take time.
@torch.library.custom_op("leantrain::block_sparse_product", mutates_args=())
def _product(x: Tensor, weight: Tensor, mask: Tensor, block: int, transposed: bool) -> Tensor:
    if not x.is_cuda:
        return product_of_views(x, weight, mask, block, transposed)
    from techniques.shared.sparse import block_sparse_kernel  # loads Triton

    return block_sparse_kernel.product(x, weight, mask, block, transposed)


@torch.library.custom_op("leantrain::block_sparse_gradient", mutates_args=())
def _gradient(left: Tensor, right: Tensor, mask: Tensor, block: int) -> Tensor:
    if not left.is_cuda:
        return gradient_of_views(left, right, mask, block)
    from techniques.shared.sparse import block_sparse_kernel

    return block_sparse_kernel.weight_gradient(left, right, mask, block)


@_product.register_fake
def _(x: Tensor, weight: Tensor, mask: Tensor, block: int, transposed: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1 if transposed else 0])


@_gradient.register_fake
def _(left: Tensor, right: Tensor, mask: Tensor, block: int) -> Tensor:
    return left.new_empty(mask.shape)


@register_flop_formula(torch.ops.leantrain.block_sparse_product, get_raw=True)
def _product_flops(x: Tensor, weight: Tensor, mask: Tensor, *_: Any, **__: Any) -> int:
    return 2 * x.shape[0] * int(mask.sum())


@register_flop_formula(torch.ops.leantrain.block_sparse_gradient, get_raw=True)
def _gradient_flops(left: Tensor, right: Tensor, mask: Tensor, *_: Any, **__: Any) -> int:
    return 2 * left.shape[0] * int(mask.sum())


class Products(torch.autograd.Function):
    """Computes by ``apply(x, weight, bias, mask, block, transposed, dense_gradient)``: as :func:`product`, plus a bias
    or None."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        block: int,
        transposed: bool,
        dense_gradient: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.block, ctx.transposed, ctx.dense_gradient = block, transposed, dense_gradient
        y = product(x, weight, mask, block, transposed)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = product(gradient, weight, mask, ctx.block, not ctx.transposed)
        if ctx.needs_input_grad[1]:
            left, right = (x, gradient) if ctx.transposed else (gradient, x)
            of_weight = left.T @ right if ctx.dense_gradient else weight_gradient(left, right, mask, ctx.block)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias, None, None, None, None


class BlockSparseLinear(nn.Module):
    """Takes the place of an nn.Linear or Conv1D with a mask: the same parameters and buffer, by the same names.

    ``dense_gradient`` says whether the gradient of the weight is that of all its entries, kept or not.
    """

    def __init__(self, linear: nn.Module, block: int, dense_gradient: bool = False) -> None:
        super().__init__()
        self.weight = linear.get_parameter("weight")
        self.bias: nn.Parameter | None = getattr(linear, "bias", None)
        self.register_buffer(MASK, linear.get_buffer(MASK))
        self.in_features, self.out_features = in_features(linear), out_features(linear)
        self.transposed = is_transposed(linear)
        if self.transposed:
            self.nf = self.out_features  # by which a Conv1D is known
        self.block, self.dense_gradient = block, dense_gradient

    def forward(self, x: Tensor) -> Tensor:
        device, weight = x.device.type, cast(Tensor, self.weight)
        if torch.is_autocast_enabled(device):
            x, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (x, weight))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        rows, mask = x.reshape(-1, x.shape[-1]), self.get_buffer(MASK)
        y: Tensor = Products.apply(rows, weight, bias, mask, self.block, self.transposed, self.dense_gradient)
        return y.view(*x.shape[:-1], y.shape[-1])


# the technique's part -----------------------------------------------------------------------------------------------


def summed(scores: Tensor, block: int) -> Tensor:
    """Sums over the b x b blocks of [n, m]; of blocks of one entry, that entry."""
    if block == 1:
        return scores
    n, m = scores.shape
    return scores.view(n // block, block, m // block, block).sum((1, 3))


def magnitudes(values: Tensor, block: int) -> Tensor:
    """Sums of magnitudes over the b x b blocks of [n, m]; of blocks of one entry, that entry with its sign."""
    return values if block == 1 else summed(values.abs(), block)


def expanded(blocks: Tensor, block: int) -> Tensor:
    """Builds the mask [n, m] of whole blocks, of one [n / b, m / b] that says which are kept."""
    return blocks if block == 1 else blocks.repeat_interleave(block, 0).repeat_interleave(block, 1)


@dataclass
class BlockMasked(Masked):
    """Is the base of a technique whose masks may be of ``block`` x ``block`` blocks, 1 x 1 as its paper has them.

    ``execution`` "block_sparse" multiplies the kept blocks only; "masked" multiplies with all, most of them 0.
    """

    block: int = 1
    execution: Execution = "masked"

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block is the side of a mask's blocks, 1 or more, not {self.block}")
        if self.execution == "block_sparse" and self.block == 1:
            raise ValueError(
                "block-sparse execution needs blocks, and single weights are none: say block=16 or more with it"
            )

    def layers(self, model: nn.Module) -> list[Part]:
        """Returns the layers to mask. Raises ValueError where blocks do not divide one, or it cannot be executed so."""
        parts = prunable(model)
        for path, layer in parts:
            if any(size % self.block for size in layer.get_parameter("weight").shape):
                sizes = [size for part in parts for size in part.module.get_parameter("weight").shape]
                raise ValueError(
                    f"blocks of {self.block} do not divide the weight {list(layer.get_parameter('weight').shape)} of "
                    f"{path}: all layers' are divided by {gcd(*sizes)} and what divides it"
                )
            if self.execution == "block_sparse" and (
                isinstance(layer, AroundLinear)
                or (type(layer).forward is not nn.Linear.forward and not is_transposed(layer))
            ):
                raise ValueError(
                    f"block-sparse execution replaces the products of nn.Linear and of Conv1D, and {path} is a "
                    f"{type(layer).__name__}: put sparse training before what wraps its layers, or say "
                    "execution=masked"
                )
        return parts

    def execute(self, model: nn.Module, parts: list[Part], dense_gradient: bool = False) -> None:
        """Lets the masked layers ``parts`` of ``model`` run as ``execution`` says."""
        if self.execution == "block_sparse":
            own = anatomy(model)
            for path, layer in parts:
                own.replace(path, BlockSparseLinear(layer, self.block, dense_gradient))

    def ask_for_dense_gradients(self, run: Run, asked: bool) -> None:
        """Says whether layers run block-sparsely compute the gradients of weights that are no connections, too."""
        if self.execution == "block_sparse":
            for _, layer in run.anatomy.linears:
                if isinstance(layer, BlockSparseLinear):
                    layer.dense_gradient = asked

    def sites(self, run: Run) -> Mapping[str, Site]:
        modules = {path: layer for path, layer in run.model.named_modules() if isinstance(layer, BlockSparseLinear)}
        return {**super().sites(run), **modules}
