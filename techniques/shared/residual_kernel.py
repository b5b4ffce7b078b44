"""Computes a residual stream and a branch times a number, y = x + s b, and its gradients: one pass forth, one pass
back.

    forth   y <- x + s b                              x, b read, y written
    back    db <- s dy    ds <- sum of dy b           dy, b read, db written

dx is dy itself. In torch's operators the product is written and read again, and the sum for s reads dy and b a second
time: 20 bytes a float32 number forth in place of 12, 24 back in place of 12. Each program leaves one partial sum of ds,
and these are added up afterwards: no atomics, the same bits every time. Arithmetic is float32, every product and sum
rounded by itself, so that y and db of float32 tensors are the same bits as in torch.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.optimizer_parts import NUM_WARPS, OPTIONS, reduction_bytes
from suite.kernels.portable import narrow

BLOCK = 2048
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def _place(elements, BLOCK: tl.constexpr):
    """Returns the program's offsets, in 64 bits, and which of them are in the tensors."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    return first + offsets, offsets < elements - first


@triton.jit
def scaled_sum_kernel(stream, branch, scale, output, elements, BLOCK: tl.constexpr):
    offsets, mask = _place(elements, BLOCK)
    x = tl.load(stream + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(branch + offsets, mask=mask, other=0.0).to(tl.float32)
    y = x + tl.load(scale) * b
    tl.store(output + offsets, narrow(y, output.dtype.element_ty), mask=mask)


@triton.jit
def gradients_kernel(gradient, branch, scale, of_branch, partials, elements, BLOCK: tl.constexpr):
    offsets, mask = _place(elements, BLOCK)
    dy = tl.load(gradient + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(branch + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(of_branch + offsets, narrow(tl.load(scale) * dy, of_branch.dtype.element_ty), mask=mask)
    tl.store(partials + tl.program_id(0), tl.sum(dy * b))


def scaled_sum(stream: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
    """Computes ``stream`` + ``scale`` ``branch``, in the wider of the two dtypes, float32 or bfloat16.

    Both are contiguous and of one shape; ``scale`` is float32 [1]. All are on one device.
    """
    output = torch.empty_like(stream, dtype=torch.promote_types(stream.dtype, branch.dtype))
    _launch(scaled_sum_kernel, stream.numel(), stream, branch, scale, output)
    return output


def gradients(gradient: Tensor, branch: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the gradients of the branch, in its dtype, and of the scale, float32 [1], from that of
    :func:`scaled_sum`'s output.

    Tensors as there; the gradient is contiguous.
    """
    of_branch = torch.empty_like(branch)
    partials = torch.empty(triton.cdiv(branch.numel(), BLOCK), dtype=torch.float32, device=branch.device)
    _launch(gradients_kernel, branch.numel(), gradient, branch, scale, of_branch, partials)
    return of_branch, partials.sum(0, keepdim=True)


def _launch(kernel: Any, elements: int, *tensors: Tensor) -> None:
    if elements:
        with torch.cuda.device_of(tensors[0]):
            kernel[(triton.cdiv(elements, BLOCK),)](*tensors, elements, BLOCK=BLOCK, num_warps=NUM_WARPS, **OPTIONS)


def _manifest(kernel: Any, dtypes: Sequence[torch.dtype], sums: int = 0) -> Manifest:
    """Describes a compilation, where ``dtypes`` are those of the two lists that are read and of the one that is
    written."""
    names = [name for name in kernel.arg_names if name not in ("scale", "partials", "elements", "BLOCK")]
    pointers = dict(zip(names, (POINTERS[dtype] for dtype in dtypes), strict=True))
    signature = {name: pointers.get(name, "*fp32") for name in kernel.arg_names if name not in ("elements", "BLOCK")}
    accesses = BLOCK // (NUM_WARPS * 32 * 16)  # of a thread, 16 bytes each, a byte of an element
    read, written = sum(dtype.itemsize for dtype in dtypes[:2]), dtypes[2].itemsize
    mixed = BLOCK * 4 if len(set(dtypes)) > 1 else 0
    return Manifest(
        kernel=kernel,
        signature=signature | {"elements": "i32"},
        constants={"BLOCK": BLOCK},
        elements_per_program=BLOCK,
        aligned=(*signature, "elements"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=64,
            shared_bytes=max(mixed, reduction_bytes(sums)),
            wide_loads=accesses * read,
            wide_stores=accesses * written,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (read + written),
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    "float32": _manifest(scaled_sum_kernel, (F32, F32, F32)),
    "float32:back": _manifest(gradients_kernel, (F32, F32, F32), sums=1),
    "bfloat16": _manifest(scaled_sum_kernel, (BF16, BF16, BF16)),
    "bfloat16:back": _manifest(gradients_kernel, (BF16, BF16, BF16), sums=1),
    "autocast": _manifest(scaled_sum_kernel, (F32, BF16, F32)),
    "autocast:back": _manifest(gradients_kernel, (F32, BF16, BF16), sums=1),
}
