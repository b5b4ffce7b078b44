"""Computes the cross-entropy of a row of logits and the norm of its gradient in them, ||softmax(z) - y||_2, in one
pass.

    forth   loss  = log sum_j e^z_j - z_y                           z read once
            norm^2 = (sum_j' e^2z_j + (sum_j' e^z_j)^2) / (sum_j e^z_j)^2
    back    dz = g (softmax(z) - y)                                 z read, dz written

where j' leaves the target out. The textbook form sum p^2 - 2 p_y + 1 of the norm loses half of its digits where p_y is
near 1, which is where most examples soon are; without the target nothing is subtracted. Exponentials are of the
distance from the largest logit so far, and sums fade as that grows.

In torch's operators the norm takes the gradient itself: another read and two writes of as many numbers as the logits.
Rows whose target is ``ignored`` are not read. Arithmetic is float32.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.optimizer_parts import NUM_WARPS, reduction_bytes
from suite.kernels.portable import narrow

BLOCK = 4096
OPTIONS = {"enable_fp_fusion": True}
ONCE = 200  # instructions of a thread that run once a row and not once a block: the target's, the last sums
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def losses_and_norms_kernel(logits, targets, losses, norms, levels, classes, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row).to(tl.int32)
    first = logits + row * classes
    offsets = tl.arange(0, BLOCK)
    counted = target != ignored
    peak = tl.full((), float("-inf"), tl.float32)
    others = tl.full((), 0.0, tl.float32)
    squares = tl.full((), 0.0, tl.float32)
    for start in range(0, tl.where(counted, classes, 0), BLOCK):
        index = start + offsets
        z = tl.load(first + index, mask=index < classes, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(z, 0))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        e = tl.where(index == target, 0.0, tl.exp(z - level))
        fade = tl.exp(peak - level)
        others = others * fade + tl.sum(e, 0)
        squares = squares * fade * fade + tl.sum(e * e, 0)
        peak = higher
    own = tl.load(first + target, mask=counted, other=0.0).to(tl.float32)
    level = tl.where(counted, peak, 0.0)
    total = others + tl.exp(own - level)
    level += tl.log(total)
    tl.store(losses + row, tl.where(counted, level - own, 0.0))
    tl.store(norms + row, tl.where(counted, tl.sqrt(squares + others * others) / total, 0.0))
    tl.store(levels + row, level)


@triton.jit
def gradients_kernel(of_losses, logits, targets, levels, of_logits, classes, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row).to(tl.int32)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = index < classes
    z = tl.load(logits + row * classes + index, mask=mask, other=0.0).to(tl.float32)
    error = tl.exp(z - tl.load(levels + row)) - tl.where(index == target, 1.0, 0.0)
    dz = tl.where(target == ignored, 0.0, tl.load(of_losses + row) * error)
    tl.store(of_logits + row * classes + index, narrow(dz, of_logits.dtype.element_ty), mask=mask)


def losses_and_norms(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Computes, of each row, its cross-entropy, the norm of that one's gradient, and log sum e^z: float32 [rows].

    ``logits`` float32 or bfloat16 [rows, classes], ``targets`` int64 [rows], in [0, classes) or ``ignored``: then loss
    and norm are 0. Both are contiguous and on one device.
    """
    rows, classes = logits.shape
    outputs = [torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3)]
    _launch(losses_and_norms_kernel, (rows,), logits, targets, *outputs, classes=classes, ignored=ignored)
    losses, norms, levels = outputs
    return losses, norms, levels


def gradients(of_losses: Tensor, logits: Tensor, targets: Tensor, levels: Tensor, ignored: int) -> Tensor:
    """Computes the gradients of the logits, in their dtype, from float32 ones of the losses [rows]; the rest as in, and
    from, :func:`losses_and_norms`."""
    rows, classes = logits.shape
    of_logits = torch.empty_like(logits)
    grid = (rows, triton.cdiv(classes, _block(classes)))
    _launch(gradients_kernel, grid, of_losses, logits, targets, levels, of_logits, classes=classes, ignored=ignored)
    return of_logits


def _block(classes: int) -> int:
    return min(BLOCK, triton.next_power_of_2(classes))


def _launch(kernel: Any, grid: tuple[int, ...], *tensors: Tensor, classes: int, ignored: int) -> None:
    if all(grid):
        with torch.cuda.device_of(tensors[0]):
            kernel[grid](*tensors, classes, ignored, BLOCK=_block(classes), num_warps=NUM_WARPS, **OPTIONS)


def _manifest(kernel: Any, dtype: torch.dtype, sums: int, aligned: bool) -> Manifest:
    """Describes the kernel; ``aligned``: each row begins at a multiple of 16, as where the number of classes is one."""
    back = kernel is gradients_kernel
    types = {
        "targets": "*i64",
        "logits": POINTERS[dtype],
        "of_logits": POINTERS[dtype],
        "classes": "i32",
        "ignored": "i32",
    }
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names if name != "BLOCK"}
    accesses = BLOCK * dtype.itemsize // (NUM_WARPS * 32 * 16) if aligned else 0  # of a thread, 16 bytes each
    ceiling = LANE_INSTRUCTIONS_PER_BYTE * dtype.itemsize * (2 if back else 1)
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants={"BLOCK": BLOCK},
        elements_per_program=BLOCK,
        aligned=tuple(name for name in signature if name != "ignored" and (aligned or name != "classes")),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=128,
            shared_bytes=reduction_bytes(sums),
            wide_loads=accesses,
            wide_stores=accesses if back else 0,
            instructions_per_element=ceiling + (0 if back else ONCE * NUM_WARPS * 32 / BLOCK),
        ),
    )


F32, BF16 = torch.float32, torch.bfloat16
MANIFESTS = {
    "float32": _manifest(losses_and_norms_kernel, F32, 3, aligned=True),
    "float32:back": _manifest(gradients_kernel, F32, 0, aligned=True),
    "bfloat16": _manifest(losses_and_norms_kernel, BF16, 3, aligned=True),
    "bfloat16:back": _manifest(gradients_kernel, BF16, 0, aligned=True),
    "any width": _manifest(losses_and_norms_kernel, F32, 3, aligned=False),
    "any width:back": _manifest(gradients_kernel, F32, 0, aligned=False),
}
