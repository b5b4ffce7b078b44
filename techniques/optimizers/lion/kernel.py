"""Lion's update (2302.06675, Algorithm 2) in one pass over parameters, momenta and gradients: one launch a step.

    theta <- theta (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
    m     <- beta2 m + (1 - beta2) g

Traffic is the floor: 12 bytes read and 8 written a float32 parameter, 10 in all a bfloat16 one with bfloat16 momentum.
Arithmetic is float32, every product and sum rounded by itself (no fused multiply-add, which memory-bound code can
afford): so float32 results are the same bits on a GPU, under the interpreter, and in the formula written with torch
operators. The sign of beta1 m + (1 - beta1) g depends on the rounding where the two terms cancel. As in torch.sign,
the sign of 0 and of NaN is 0; a NaN stays visible in the momentum.

The update is in place, hence no autotuning: trial runs would be steps.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from suite.kernels import multi_tensor
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.portable import narrow

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
OPTIONS = {"enable_fp_fusion": False}
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _update(
    parameters, momenta, gradients, offsets, mask, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(momenta + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32)
    u = beta1 * m + one_minus_beta1 * g
    sign = tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, 0.0))
    p = decay * p - lr * sign
    m = beta2 * m + one_minus_beta2 * g
    tl.store(parameters + offsets, narrow(p, parameters.dtype.element_ty), mask=mask)
    tl.store(momenta + offsets, narrow(m, momenta.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors"])
def lion_kernel(
    table, blocks, tensors, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay,
    PARAMETER: tl.constexpr, MOMENTUM: tl.constexpr, GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    m = multi_tensor.address(table, 1, tensor, tensors)
    g = multi_tensor.address(table, 2, tensor, tensors)
    remaining = multi_tensor.elements(table, 3, tensor, tensors) - first
    if multi_tensor.vectorizable(p | m | g, remaining, BLOCK):
        _update(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(m, MOMENTUM, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1),
            lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay,
        )  # fmt: skip
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _update(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(m, MOMENTUM, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining,
                    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay,
                )  # fmt: skip


def launch_tables() -> LaunchTables:
    """What `lion_step` keeps between steps: one for each parameter group."""
    return LaunchTables(BLOCK)


@torch.no_grad()
def lion_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """One Lion step, in place on ``parameters`` and ``momenta``: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements. ``tables`` comes from `launch_tables` and belongs to these parameters.

    Raises TypeError for other dtypes, and what `LaunchTables.groups` raises.
    """
    groups = tables.groups((parameters, momenta), (gradients,))
    for group in groups:
        unknown = set(group.dtypes) - set(DTYPES)
        if unknown:
            raise TypeError(f"the Lion kernel knows no {unknown}: give float32 or bfloat16 tensors")
    for group in groups:
        parameter, momentum, gradient = (DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            lion_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors,
                lr, beta1, 1 - beta1, beta2, 1 - beta2, 1 - lr * weight_decay,
                PARAMETER=parameter, MOMENTUM=momentum, GRADIENT=gradient, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    increment_version(parameters)
    increment_version(momenta)


def _manifest(parameter: torch.dtype, momentum: torch.dtype, gradient: torch.dtype) -> Manifest:
    read_bytes = parameter.itemsize + momentum.itemsize + gradient.itemsize
    written_bytes = parameter.itemsize + momentum.itemsize
    accesses = BLOCK // (NUM_WARPS * 32 * multi_tensor.VECTOR_BYTES.value)  # of a thread, for each byte of an element
    return Manifest(
        kernel=lion_kernel,
        signature={
            "table": "*i64",
            "blocks": "*i64",
            "tensors": "i32",
            **dict.fromkeys(("lr", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "decay"), "fp32"),
        },
        constants={
            "PARAMETER": DTYPES[parameter],
            "MOMENTUM": DTYPES[momentum],
            "GRADIENT": DTYPES[gradient],
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=Budget(
            registers=64,  # eight programs of four warps on a multiprocessor: enough loads in flight to hide memory
            # Lists of one width share a layout; others meet in shared memory, one list of a program's block at a time.
            shared_bytes=0 if parameter.itemsize == momentum.itemsize == gradient.itemsize else BLOCK * 4,
            wide_loads=accesses * read_bytes,
            wide_stores=accesses * written_bytes,
            instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (read_bytes + written_bytes),
        ),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32, torch.float32),
    "bfloat16_momentum": _manifest(torch.float32, torch.bfloat16, torch.float32),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "bfloat16_float32_momentum": _manifest(torch.bfloat16, torch.float32, torch.bfloat16),
}
