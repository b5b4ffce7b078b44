"""Counts the FLOPs of what ran: torch's counter, with the formulas that it lacks or has wrong.

A multiply-add is two FLOPs. Only matrix products, convolutions and attention count, as in the papers. Formulas are
dense: a causal mask does not halve them. Attention over q [b, h, s_q, d], k [b, h, s_k, d], v [b, h, s_k, d_v]:

    forward              2 b h s_q s_k (d + d_v)          scores, weighted sum
    backward, fused      2 b h s_q s_k (3 d + 2 d_v)      scores again, dP, dV, dQ, dK: 2.5 x forward
    backward, unfused    2 b h s_q s_k (2 d + 2 d_v)      dP, dV, dQ, dK: 2 x forward

So fused and unfused attention have equal forward FLOPs, and the fused backward has one score product more:
FlashAttention (2205.14135, section 3.1) trades FLOPs for memory traffic, and a count that shows it saving FLOPs is a
counter's fault. Recomputation under activation checkpointing does run, so it counts.

Limits. The count is of eager semantics: under torch.compile the dispatcher sees the eager operators. A kernel launched
outside the dispatcher (a bare Triton or CUDA launch) is invisible: register it as an operator with torch.library and
give it a formula with ``torch.utils.flop_counter.register_flop_formula``. What the dispatcher saw, no formula covers
and is not free by convention (:mod:`suite.meters.free_operators`) is in ``uncounted``, a recurrent layer or a
decomposition for instance: while that is not empty, ``total`` is a lower bound.
"""

from collections import Counter
from collections.abc import Callable
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from suite.meters.free_operators import free

aten = torch.ops.aten
# Without this option, which torch 2.11 does not have yet, torch counts a wrapped Triton kernel but does not run it.
RUNNING_KERNELS: dict[str, Any] = (
    {"skip_unsupported": True} if "skip_unsupported" in signature(FlopCounterMode).parameters else {}
)
Formula = Callable[..., int]
Shape = tuple[int, ...]


def attention_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Counts the forward FLOPs of softmax attention; shapes are [batch, heads, length, width], grouped-query heads
    allowed."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[-2] * (width + value[-1])


def attention_backward_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Counts the backward FLOPs of fused attention, which recomputes the scores; shapes as in
    :func:`attention_flops`."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[-2] * (3 * width + 2 * value[-1])


def _raw(formula: Formula) -> Formula:
    """Marks a formula that wants the tensors, not only their shapes."""
    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


def _forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    return attention_flops(tuple(query.shape), tuple(key.shape), tuple(value.shape))


def _backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    return attention_backward_flops(tuple(query.shape), tuple(key.shape), tuple(value.shape))


def _lengths(offsets: Tensor | None, longest: int) -> list[int]:
    """Returns the sequence lengths from cumulative offsets; where the offsets have no data (fake tensors), all are the
    longest."""
    assert offsets is not None
    if isinstance(offsets, torch._subclasses.FakeTensor) or offsets.is_meta:
        return [longest] * (offsets.shape[0] - 1)
    return [int(length) for length in offsets.diff().tolist()]


def _sequence_first(count: Formula) -> Formula:
    """Returns ``count`` summed over sequences for kernels whose operands are [batch, length, heads, width], not heads
    first.

    With cumulative offsets the operands are packed, [(1,) total length, heads, width], and each sequence counts alone.
    Torch reads the efficient kernels' operands as heads first, which multiplies the wrong pair of sizes.
    """

    def flops(
        query: Tensor, key: Tensor, value: Tensor, offsets_q: Tensor | None, offsets_k: Tensor | None, q: int, k: int
    ) -> int:
        heads, width, width_v = query.shape[-2], query.shape[-1], value.shape[-1]
        if offsets_q is None:
            batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
            return count((batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, keys, width_v))
        pairs = zip(_lengths(offsets_q, q), _lengths(offsets_k, k), strict=True)
        return sum(count((1, heads, n, width), (1, heads, m, width), (1, heads, m, width_v)) for n, m in pairs)

    return flops


_packed_forward = _sequence_first(attention_flops)
_packed_backward = _sequence_first(attention_backward_flops)


def _flash(query: Tensor, key: Tensor, value: Tensor, oq: Any, ok: Any, q: int, k: int, *_: Any, **__: Any) -> int:
    return _packed_forward(query, key, value, oq, ok, q, k)


def _flash_out(
    out: Tensor, query: Tensor, key: Tensor, value: Tensor, oq: Any, ok: Any, q: int, k: int, *_: Any, **__: Any
) -> int:
    return _packed_forward(query, key, value, oq, ok, q, k)


def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    oq: Any,
    ok: Any,
    q: int,
    k: int,
    *_: Any,
    **__: Any,
) -> int:
    return _packed_backward(query, key, value, oq, ok, q, k)


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, oq: Any, ok: Any, q: Any, k: Any, *_: Any, **__: Any
) -> int:
    return _packed_forward(query, key, value, oq, ok, q, k)


def _efficient_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Any,
    out: Tensor,
    oq: Any,
    ok: Any,
    q: Any,
    k: Any,
    *_: Any,
    **__: Any,
) -> int:
    return _packed_backward(query, key, value, oq, ok, q, k)


def _heads_first_or_packed(count: Formula) -> Formula:
    """Counts as :func:`_sequence_first` where there are offsets; without them cuDNN's operands have their heads
    first."""
    packed = _sequence_first(count)

    def flops(query: Tensor, key: Tensor, value: Tensor, oq: Tensor | None, ok: Tensor | None, q: int, k: int) -> int:
        if oq is None:
            return count(tuple(query.shape), tuple(key.shape), tuple(value.shape))
        return packed(query, key, value, oq, oq if ok is None else ok, q, k)

    return flops


_cudnn_forward = _heads_first_or_packed(attention_flops)
_cudnn_backward = _heads_first_or_packed(attention_backward_flops)


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, oq: Any, ok: Any, q: int, k: int, *_: Any, **__: Any
) -> int:
    return _cudnn_forward(query, key, value, oq, ok, q, k)


def _cudnn_out(
    out: Tensor, query: Tensor, key: Tensor, value: Tensor, oq: Any, ok: Any, q: int, k: int, *_: Any, **__: Any
) -> int:
    return _cudnn_forward(query, key, value, oq, ok, q, k)


def _cudnn_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    seed: Any,
    offset: Any,
    bias: Any,
    oq: Any,
    ok: Any,
    q: int,
    k: int,
    *_: Any,
    **__: Any,
) -> int:
    return _cudnn_backward(query, key, value, oq, ok, q, k)


def _matmul(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Counts 2 m n k, or 2 nnz n when one side is sparse: only stored elements are multiplied."""
    if a.layout is not torch.strided:
        return 2 * _stored(a) * b.shape[-1]
    if b.layout is not torch.strided:
        return 2 * a.shape[0] * _stored(b)
    return 2 * prod(a.shape) * b.shape[-1]


def _stored(tensor: Tensor) -> int:
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.numel()


def _matmul_added(bias: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return _matmul(a, b)


def _vector(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * (_stored(a) if a.layout is not torch.strided else a.numel())


def _vector_added(bias: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return _vector(a, b)


def _outer_added(sum: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.numel()


def _grouped(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Counts grouped products (experts): the groups partition one of the sizes unless both sides carry the group."""
    return 2 * (a.shape[0] if a.dim() == b.dim() == 3 else 1) * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _convolution_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: list[bool],
    *_: Any,
    **__: Any,
) -> int:
    """Counts as many for the gradient of the input as for the forward pass, 2 batch points weights, and so for that of
    the weights. Torch multiplies those of the weights by the groups."""
    points = prod((x if transposed else grad).shape[2:])
    return 2 * len(x) * points * weight.numel() * (wanted[0] + wanted[1])


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
            "_scaled_dot_product_attention_math_for_mps",
        ),
        _raw(_forward),
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        _raw(_backward),
    ),
    "_flash_attention_forward": _raw(_flash),
    "_flash_attention_forward_no_dropout_inplace": _raw(_flash_out),
    "_flash_attention_backward": _raw(_flash_backward),
    "_cudnn_attention_forward": _raw(_cudnn),
    "_cudnn_attention_forward_no_dropout_inplace": _raw(_cudnn_out),
    "_cudnn_attention_backward": _raw(_cudnn_gradients),
    "_efficient_attention_forward": _raw(_efficient),
    "_efficient_attention_backward": _raw(_efficient_backward),
    **dict.fromkeys(("mm", "_int_mm", "_sparse_mm"), _raw(_matmul)),
    **dict.fromkeys(
        ("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "_addmm_activation", "_sparse_addmm"),
        _raw(_matmul_added),
    ),
    **dict.fromkeys(("mv", "dot", "vdot"), _raw(_vector)),
    **dict.fromkeys(("addmv", "addmv_"), _raw(_vector_added)),
    **dict.fromkeys(("addr", "addr_"), _raw(_outer_added)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), _raw(_grouped)),
    "convolution_backward": _raw(_convolution_gradients),
}
"""Formulas by operator name. Torch's own entries for the same operators are replaced, so the count does not depend on
which of them a torch version has or has right. Names that this torch lacks are left out."""


class _WholeModelOnly:
    """Stands in for torch's module tracker, whose hooks on every module and tensor the total does not need."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class FlopCounter(FlopCounterMode):
    """Counts the FLOPs of the operators that run inside it.

    >>> with FlopCounter() as counter:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counter.total
    48
    """

    def __init__(self) -> None:
        repaired = {getattr(aten, name): formula for name, formula in FORMULAS.items() if hasattr(aten, name)}
        super().__init__(display=False, custom_mapping=repaired, **RUNNING_KERNELS)
        self.mod_tracker = _WholeModelOnly()  # type: ignore[assignment]
        self._uncounted: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Counts the FLOPs so far."""
        return int(self.get_total_flops())

    @property
    def uncounted(self) -> dict[str, int]:
        """Calls of operators that may do matrix work and have no formula, by name."""
        skipped: Counter[str] = self.get_unsupported_ops() if RUNNING_KERNELS else Counter()
        return dict(sorted((self._uncounted + skipped).items()))

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet not in self.flop_registry and not free(func_packet):
            self._uncounted[str(func_packet)] += 1
        if "kernel_idx" in kwargs and not RUNNING_KERNELS:
            out = _launched(kwargs)
        return super()._count_flops(func_packet, out, args, kwargs)


def _launched(kernel: dict[str, Any]) -> Any:
    """Runs a wrapped Triton kernel, which a torch without the option counts and leaves out."""
    wrappers = torch.ops.higher_order
    if "tensors_to_clone" in kernel:
        return wrappers.triton_kernel_wrapper_functional(**kernel)
    return wrappers.triton_kernel_wrapper_mutation(**kernel)
