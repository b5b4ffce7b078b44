"""ACClip's update (1912.03194, Algorithm 2) in one pass over four lists: one launch a step.

    m     <- beta1 m + (1 - beta1) g               power <- beta2 power + (1 - beta2) |g|^alpha
    theta <- (1 - lr wd) theta - lr min(power^(1/alpha) / (|m| + eps), 1) m

Traffic is the floor: 16 bytes read and 12 written a float32 parameter. Arithmetic is float32. For alpha of 1 and 2
every operation is rounded to nearest by itself, so that float32 results are the same bits on a GPU, under the
interpreter, and in the formula as written here with torch operators; for alpha between them powers go through exp2
and log2, which differ by a few units in the last place. A NaN stays visible in all three lists.

Optionally, at no further pass: gradients divided by a loss scale, the whole step left out where a flag says so (both
read from device scalars), and bfloat16 parameters rounded stochastically.

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

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.portable import narrow

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
REGISTERS = 96  # five programs of four warps on a multiprocessor, each with four lists of loads in flight
REGISTERS_OF_POWERS = 128  # four of them: alpha between 1 and 2 pays for its logarithms
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _power(x, exponent, ALPHA: tl.constexpr, ROOT: tl.constexpr):
    """x >= 0 to the power alpha, or to 1 / alpha; ``exponent`` is that number where ``ALPHA`` is not 1 or 2."""
    if ALPHA == 1:
        result = x
    elif ALPHA == 2:
        if ROOT:
            result = tl.sqrt_rn(x)
        else:
            result = x * x
    else:
        result = tl.where(x == 0, x, tl.exp2(exponent * tl.log2(x)))  # of 0 the interpreter's logarithm warns
    return result


@triton.jit
def _update(
    parameters, momenta, powers, gradients, offsets, mask, factor, seed, tensor, first,
    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, alpha, inverse_alpha,
    ALPHA: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    p = tl.load(parameters + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(momenta + offsets, mask=mask, other=0.0).to(tl.float32)
    power = tl.load(powers + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradients + offsets, mask=mask, other=0.0).to(tl.float32) * factor
    m = beta1 * m + one_minus_beta1 * g
    power = beta2 * power + one_minus_beta2 * _power(tl.abs(g), alpha, ALPHA, False)
    share = tl.div_rn(_power(power, inverse_alpha, ALPHA, True), tl.abs(m) + eps)
    share = tl.where(share > 1, 1.0, share)  # a NaN is not larger, and stays
    p = decay * p - lr * (share * m)
    if STOCHASTIC:
        bits = optimizer_parts.random_bits(seed, tensor, first, offsets)
        rounded = optimizer_parts.narrow_stochastic(p, bits, parameters.dtype.element_ty)
    else:
        rounded = narrow(p, parameters.dtype.element_ty)
    tl.store(parameters + offsets, rounded, mask=mask)
    tl.store(momenta + offsets, narrow(m, momenta.dtype.element_ty), mask=mask)
    tl.store(powers + offsets, narrow(power, powers.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tensors", "seed"])
def acclip_kernel(
    table, blocks, tensors, seed, gradient_scale, found_inf,
    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, alpha, inverse_alpha,
    PARAMETER: tl.constexpr, STATE: tl.constexpr, GRADIENT: tl.constexpr,
    ALPHA: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(gradient_scale, None)
    tensor, first = multi_tensor.block(blocks, BLOCK)
    p = multi_tensor.address(table, 0, tensor, tensors)
    m = multi_tensor.address(table, 1, tensor, tensors)
    power = multi_tensor.address(table, 2, tensor, tensors)
    g = multi_tensor.address(table, 3, tensor, tensors)
    remaining = multi_tensor.elements(table, 4, tensor, tensors) - first
    if multi_tensor.vectorizable(p | m | power | g, remaining, BLOCK):
        _update(
            multi_tensor.pointer(p, PARAMETER, True) + first,
            multi_tensor.pointer(m, STATE, True) + first,
            multi_tensor.pointer(power, STATE, True) + first,
            multi_tensor.pointer(g, GRADIENT, True) + first,
            tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1), factor, seed, tensor, first,
            lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, alpha, inverse_alpha, ALPHA, STOCHASTIC,
        )  # fmt: skip
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                _update(
                    multi_tensor.pointer(p, PARAMETER, False) + first,
                    multi_tensor.pointer(m, STATE, False) + first,
                    multi_tensor.pointer(power, STATE, False) + first,
                    multi_tensor.pointer(g, GRADIENT, False) + first,
                    offsets, offsets < remaining, factor, seed, tensor, first,
                    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, alpha, inverse_alpha,
                    ALPHA, STOCHASTIC,
                )  # fmt: skip


def launch_tables() -> LaunchTables:
    """What `acclip_step` keeps between steps: one for each parameter group."""
    return LaunchTables(BLOCK)


@torch.no_grad()
def acclip_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    powers: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    alpha: float,
    weight_decay: float = 0.0,
    gradient_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | None = None,
) -> None:
    """One step, in place on all but ``gradients``: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements; ``momenta`` and ``powers`` share a dtype. ``tables`` comes from `launch_tables` and belongs to these
    parameters.

    ``gradient_scale`` (divides gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors
    of one element on the parameters' device. ``seed``, different each step, rounds bfloat16 parameters stochastically;
    without one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    groups = tables.groups((parameters, momenta, powers), (gradients,))
    scalars = (gradient_scale, found_inf)
    for group in groups:
        optimizer_parts.check_dtypes(group.dtypes)
        if group.dtypes[1] != group.dtypes[2]:
            raise TypeError(f"momentum and power are {group.dtypes[1]} and {group.dtypes[2]}: give both one dtype")
        optimizer_parts.check_scalars(scalars, group.table.device)
    for group in groups:
        parameter, state, _, gradient = (optimizer_parts.DTYPES[dtype] for dtype in group.dtypes)
        with torch.cuda.device_of(group.table):
            acclip_kernel[(group.programs,)](
                group.table, group.blocks, group.tensors, optimizer_parts.seed_word(seed), *scalars,
                float(lr), beta1, 1 - beta1, beta2, 1 - beta2, eps, 1 - lr * weight_decay, float(alpha), 1 / alpha,
                PARAMETER=parameter, STATE=state, GRADIENT=gradient, ALPHA=_special(alpha),
                STOCHASTIC=seed is not None and group.dtypes[0] == torch.bfloat16, BLOCK=BLOCK, PIECE=PIECE,
                num_warps=NUM_WARPS, **OPTIONS,
            )  # fmt: skip
    # Autograd must see that the parameters changed, as it does for torch's own in-place operators.
    for changed in (parameters, momenta, powers):
        increment_version(changed)


def _special(alpha: float) -> int:
    """1 or 2 where the powers of these are exact arithmetic, else 0: not every alpha compiles a kernel of its own."""
    return int(alpha) if alpha in (1, 2) else 0


def _manifest(
    parameter: torch.dtype, state: torch.dtype, alpha: float = 1.0, *, stochastic: bool = False, scaled: bool = False
) -> Manifest:
    """Gradients have their parameter's dtype; ``scaled`` reads both device scalars."""
    read = [parameter.itemsize, state.itemsize, state.itemsize, parameter.itemsize]
    scalars = ("gradient_scale", "found_inf")
    hyper = ("lr", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "eps", "decay", "alpha", "inverse_alpha")
    return Manifest(
        kernel=acclip_kernel,
        signature={
            "table": "*i64",
            "blocks": "*i64",
            "tensors": "i32",
            "seed": "i32",
            **(dict.fromkeys(scalars, "*fp32") if scaled else {}),
            **dict.fromkeys(hyper, "fp32"),
        },
        constants={
            **({} if scaled else dict.fromkeys(scalars)),
            "PARAMETER": optimizer_parts.DTYPES[parameter],
            "STATE": optimizer_parts.DTYPES[state],
            "GRADIENT": optimizer_parts.DTYPES[parameter],
            "ALPHA": _special(alpha),
            "STOCHASTIC": stochastic,
            "BLOCK": BLOCK,
            "PIECE": PIECE,
        },
        elements_per_program=BLOCK,
        aligned=("table", "blocks"),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=optimizer_parts.streaming_budget(
            read, read[:-1], BLOCK, NUM_WARPS, REGISTERS if _special(alpha) else REGISTERS_OF_POWERS
        ),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32),
    "float32_scaled": _manifest(torch.float32, torch.float32, scaled=True),
    "float32_alpha_2": _manifest(torch.float32, torch.float32, 2.0),
    "float32_alpha_between": _manifest(torch.float32, torch.float32, 1.5),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
}
