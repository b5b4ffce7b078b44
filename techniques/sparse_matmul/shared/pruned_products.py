"""Builds linear layers whose weights are pruned one by one and multiplied without their zeros, forward and backward.

    Y  = X W^T      sparse times dense (SpMM)
    dX = G W        SpMM with the transpose
    dW = G^T X      at the connections only (SDDMM)

For ``spgemm``, by the library's CSR products, and ``outerspace``, by outer products. Weight and gradient stay whole
tensors that are 0 elsewhere, so that optimizers and checkpoints are those of a masked layer. 16-bit operands are
widened on a CPU, whose libraries take none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import flop_registry, register_flop_formula

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.model.anatomy import AroundLinear, Part, anatomy, in_features, is_transposed, out_features
from techniques.shared.sparse.block_sparse import OfMask
from techniques.shared.sparse.masks import MASK, Masked, attach, check_sparsity, prunable
from techniques.sparse_matmul.shared.dataflows import csr

Dataflow = Literal["library", "outer"]
NARROW = (torch.float16, torch.bfloat16)
SAMPLED = torch.ops.aten.sparse_sampled_addmm


@OfMask
def positions(mask: Tensor, transposed: int) -> tuple[Tensor, Tensor]:
    """Returns CSR's row starts [n + 1] and columns [connections], int64, of ``mask`` [n, m] or of its transpose."""
    mask = mask.T if transposed else mask
    starts = torch.zeros(len(mask) + 1, dtype=torch.int64, device=mask.device)
    starts[1:] = mask.sum(1).cumsum(0)
    return starts, mask.nonzero()[:, 1]


def compressed(weight: Tensor, mask: Tensor, transposed: bool) -> Tensor:
    """Returns ``weight`` [n, m], or its transpose, at ``mask`` as a sparse CSR tensor."""
    starts, columns = positions(mask, int(transposed))
    matrix, pattern = (weight.T, mask.T) if transposed else (weight, mask)
    return csr(starts, columns, matrix[pattern], matrix.shape)


def by_outer_products(matrix: Tensor, x: Tensor) -> Tensor:
    """Computes ``matrix``, sparse CSR [n, m], times ``x`` [m, tokens]: column k times row k of x for all k, and then
    merged."""
    rows = torch.arange(matrix.shape[0], device=x.device).repeat_interleave(matrix.crow_indices().diff())
    order = matrix.col_indices().argsort(stable=True)  # the matrix by columns
    lists = torch.bmm(matrix.values()[order, None, None], x[matrix.col_indices()[order], None])  # each read once
    return x.new_zeros(matrix.shape[0], x.shape[1]).index_add_(0, rows[order], lists[:, 0])


def product(x: Tensor, weight: Tensor, mask: Tensor, transposed: bool, dataflow: Dataflow) -> Tensor:
    """Computes X W^T, or X W where ``transposed``, of ``x`` [tokens, in] and the entries of ``weight`` [n, m] at
    ``mask``."""
    if x.dtype in NARROW and not x.is_cuda:
        return product(x.float(), weight.float(), mask, transposed, dataflow).to(x.dtype)
    matrix = compressed(weight, mask, transposed)
    return (by_outer_products(matrix, x.T) if dataflow == "outer" else matrix @ x.T).T.contiguous()


def weight_gradient(left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
    """Computes left^T right of ``left`` [tokens, n] and ``right`` [tokens, m] at ``mask`` [n, m], else 0."""
    if left.dtype in NARROW:
        return weight_gradient(left.float(), right.float(), mask).to(left.dtype)
    starts, columns = positions(mask, 0)
    zeros = csr(starts, columns, left.new_zeros(len(columns)), mask.shape)
    sampled = torch.sparse.sampled_addmm(zeros, left.T.contiguous(), right.contiguous(), beta=0.0)
    gradient = left.new_zeros(mask.shape)
    gradient[mask] = sampled.values()
    return gradient


if SAMPLED not in flop_registry:  # torch's registry outlives this module, and takes one formula for each operator

    @register_flop_formula(SAMPLED, get_raw=True)
    def _sampled_flops(pattern: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
        return 2 * len(pattern.values()) * left.shape[1]


class Products(torch.autograd.Function):
    """Computes by ``apply(x, weight, mask, transposed, dataflow)``: as :func:`product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mask: Tensor, transposed: bool, dataflow: Dataflow) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.transposed, ctx.dataflow = transposed, dataflow
        with torch.autocast(x.device.type, enabled=False):  # else it narrows what is widened here
            return product(x, weight, mask, transposed, dataflow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask = ctx.saved_tensors
        gradient, of_x, of_weight = gradient.contiguous(), None, None
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                of_x = product(gradient, weight, mask, not ctx.transposed, ctx.dataflow)
            if ctx.needs_input_grad[1]:
                left, right = (x, gradient) if ctx.transposed else (gradient, x)
                of_weight = weight_gradient(left, right, mask)
        return of_x, of_weight, None, None, None


class PrunedLinear(nn.Module):
    """Takes the place of an nn.Linear or Conv1D with a mask: the same parameters and buffer, by the same names."""

    def __init__(self, linear: nn.Module, dataflow: Dataflow) -> None:
        super().__init__()
        self.weight = linear.get_parameter("weight")
        self.bias: nn.Parameter | None = getattr(linear, "bias", None)
        self.register_buffer(MASK, linear.get_buffer(MASK))
        self.in_features, self.out_features = in_features(linear), out_features(linear)
        self.transposed, self.dataflow = is_transposed(linear), dataflow
        if self.transposed:
            self.nf = self.out_features  # by which a Conv1D is known

    def forward(self, x: Tensor) -> Tensor:
        device, weight = x.device.type, cast(Tensor, self.weight)
        if torch.is_autocast_enabled(device):
            x, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (x, weight))
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = Products.apply(rows, weight, self.get_buffer(MASK), self.transposed, self.dataflow)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])


def largest(weight: Tensor, sparsity: float) -> Tensor:
    """Returns bool: the entries of one layer's ``weight`` with the largest |w|, 1 - ``sparsity`` of them, rounded.

    Raises ValueError where that is none.
    """
    count = round((1 - sparsity) * weight.numel())
    if not count:
        raise ValueError(f"sparsity {sparsity:g} leaves none of the {weight.numel()} weights of a layer: give less")
    mask = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    mask[weight.detach().abs().flatten().topk(count).indices] = True
    return mask.view(weight.shape)


@dataclass
class PrunedProducts(Masked):
    """Serves as the base of these techniques: the attention and MLP matrices of all blocks keep their largest weights
    and multiply by ``dataflow``."""

    sparsity: float = 0.9
    dataflow: ClassVar[Dataflow] = "library"
    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0}

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        own, parts = anatomy(model), prunable(model)
        for path, layer in parts:
            self.check(Part(path, layer))
            attach(layer, largest(layer.get_parameter("weight"), self.sparsity))
            own.replace(path, PrunedLinear(layer, self.dataflow))
        return model

    def check(self, part: Part) -> None:
        """Raises ValueError where a layer's product is not its own to replace."""
        layer = part.module
        if isinstance(layer, AroundLinear) or not (type(layer).forward is nn.Linear.forward or is_transposed(layer)):
            raise ValueError(
                f"products without zeros take the place of nn.Linear's and Conv1D's, and {part.path} is a "
                f"{type(layer).__name__}: put this before what wraps its layers"
            )

    def sites(self, run: Run) -> Mapping[str, Site]:
        modules = {path: layer for path, layer in run.model.named_modules() if isinstance(layer, PrunedLinear)}
        return {**super().sites(run), **modules} if not self.is_reference else {}
