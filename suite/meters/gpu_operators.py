"""Runs the operators that torch runs on an NVIDIA GPU, for tensors without values, which are nowhere.

A training step saves other bytes on a GPU than on a CPU, because a few operators differ there:

    dropout     one kernel that keeps a mask of one byte an element; a CPU keeps the noise in the input's type
    attention   fused also with dropout, and by other rules; see :func:`fused_attention_kernel`
    autocast    runs normalisations, softmax, powers, exponentials and losses in float32; a CPU leaves them in bfloat16

All three are decided by kernels of torch's dispatcher, above autograd. So while :func:`gpu_operators` is active, other
kernels stand there for fake tensors, and what they call (``aten._scaled_dot_product_flash_attention``,
``aten.native_dropout``) has meta kernels and derivatives for tensors of any device. Real tensors are left alone.

The GPU is one of compute capability 8.0 (A100). Newer data-centre GPUs (9.x, 10.x) prefer cuDNN's fused kernel, which
saves the same tensors. Limits: workspaces inside a kernel are no tensors; autocast's promotions to the widest type
(``addcmul``, ``scatter_add``, ...) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.library import Library
from torch.utils._pytree import tree_map

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

FLOAT32 = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
)
FLOAT32_BY_DTYPE = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
)
"""What CUDA's autocast runs in float32, by casting or by the operator's own ``dtype`` (ATen/autocast_mode.h,
AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE; interpolations left out)."""

Kernel = Literal["flash", "efficient", "math"]


@contextmanager
def gpu_operators() -> Iterator[None]:
    """While active, a step of fake CPU tensors runs the operators of a GPU. Of the whole process: do not nest it."""
    library = Library("aten", "IMPL")
    changed = [aten.dropout.default, aten.scaled_dot_product_attention.default]
    try:
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        for names, kernel_of in ((FLOAT32, _in_float32), (FLOAT32_BY_DTYPE, _to_float32)):
            for name in names:
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                    library.impl(name, kernel_of(_operator(name)), "AutocastCPU")
                    changed.append(_operator(name))
        _forget_kernels(changed)
        yield
    finally:
        library._destroy()
        _forget_kernels(changed)


def _forget_kernels(operators: Sequence[Any]) -> None:
    """Has Python, by which graphs are traced, ask the dispatcher again: it remembers an operator's kernels."""
    for operator in operators:
        operator._dispatch_cache.clear()


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _as_on_a_cpu(operator: Any, *args: Any) -> Any:
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _has_no_values(value: Any) -> bool:
    """Tells whether it is a fake tensor; AOTAutograd traces one inside of a functional one."""
    if isinstance(value, FunctionalTensor):
        value = torch._from_functional_tensor(value.elem)
    return isinstance(value, FakeTensor)


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Decides as ``at::dropout`` decides (ATen/native/Dropout.cpp, ``is_fused_kernel_acceptable``)."""
    if _has_no_values(input) and train and 0 < p < 1 and input.numel() > 0:
        return aten.native_dropout(input, p, train)[0]
    return _as_on_a_cpu(aten.dropout.default, input, p, train)


# autocast -----------------------------------------------------------------------------------------------------------


def _below_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in HALF and _has_no_values(value)


def _in_float32(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast():
            args, kwargs = tree_map(lambda value: value.float() if _narrow(value) else value, (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _to_float32(operator: Any) -> Callable[..., Any]:
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        chosen = args[position] if len(args) > position else kwargs.get("dtype")
        with _below_autocast():
            if chosen is None and _narrow(args[0]):
                args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
            return operator(*args, **kwargs)

    return kernel


# attention ----------------------------------------------------------------------------------------------------------


def fused_attention_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False, gqa: bool = False
) -> Kernel:
    """Returns the kernel that torch takes on a GPU of compute capability 8.0 for ``F.scaled_dot_product_attention``.

    The first that may run, of flash, efficient, math (ATen/native/transformers/cuda/sdp_utils.cpp,
    ``select_sdp_backend``):

    =========  ========================  =============================  ===================================
    kernel     types                     head sizes                     masks
    =========  ========================  =============================  ===================================
    flash      float16, bfloat16         equal, at most 256             none; causal with as many queries as keys
    efficient  these and float32         multiples of 8 (float32: 4);   any
                                         the value's may differ
    math       any                       any                            any
    =========  ========================  =============================  ===================================

    Both fused ones want four dimensions, equal batches, equal heads (with ``gqa`` whole groups of the queries'),
    nonempty sequences, and a last dimension of stride 1; efficient also starts aligned to 16 bytes. Dropout is fused.
    """
    sides = (query, key, value)
    fusible = (
        all(side.dim() == 4 for side in sides)
        and len({side.shape[0] for side in sides}) == 1
        and key.shape[1] == value.shape[1]
        and (query.shape[1] == key.shape[1] or (gqa and query.shape[1] % key.shape[1] == 0))
        and all(side.shape[-2] > 0 for side in sides)
        and all(side.stride(-1) == 1 for side in sides)
    )
    head_sizes = [side.shape[-1] for side in sides]
    if (
        fusible
        and mask is None
        and query.dtype in HALF
        and len(set(head_sizes)) == 1
        and head_sizes[0] <= 256
        and not (causal and query.shape[-2] != key.shape[-2])
    ):
        return "flash"
    if (
        fusible
        and query.dtype in (*HALF, torch.float32)
        and head_sizes[0] == head_sizes[1]
        and all(size > 0 and size % (16 // query.element_size()) == 0 for size in head_sizes)
        and all(side.storage_offset() * side.element_size() % 16 == 0 for side in sides)
    ):
        return "efficient"
    return "math"


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Calls attention with operands as ``at::scaled_dot_product_attention`` makes them
    (ATen/native/transformers/attention.cpp)."""
    if not _has_no_values(query):
        kernel = aten.scaled_dot_product_attention.default._op_dk
        return kernel(
            torch._C.DispatchKey.CompositeImplicitAutograd,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    kind = fused_attention_kernel(query, key, value, attn_mask, is_causal, enable_gqa)
    mask = _additive(attn_mask, query.dtype)
    if kind == "flash":
        width = query.shape[-1]
        scale = scale if scale is not None else 1 / math.sqrt(width)
        operands = [F.pad(operand, (0, -width % 8)) if width % 8 else operand for operand in (query, key, value)]
        output = aten._scaled_dot_product_flash_attention(*operands, dropout_p, is_causal, False, scale=scale)[0]
        return output[..., :width] if width % 8 else output
    if kind == "efficient":
        trained = torch.is_grad_enabled() and any(operand.requires_grad for operand in (query, key, value))
        bias = _aligned(mask.expand(*query.shape[:-1], key.shape[-2])) if mask is not None else None
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, trained, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return torch.zeros_like(mask, dtype=dtype) if mask is not None and mask.dtype == torch.bool else mask


def _aligned(bias: Tensor) -> Tensor:
    """Aligns a bias, since the efficient kernel reads rows of whole 16 elements: others are padded, and so made for
    every head."""
    keys = bias.shape[-1]
    if keys % 16:
        return F.pad(bias, (0, 16 - keys % 16))[..., :keys]
    return bias if all(stride % 16 == 0 for stride in bias.stride()[:-1]) else bias.contiguous()
