"""Makes ACClip's update (1912.03194, Algorithm 2) in one pass over four lists: one launch a step.

    m     <- beta1 m + (1 - beta1) g               power <- beta2 power + (1 - beta2) |g|^alpha
    theta <- (1 - lr wd) theta - lr min(power^(1/alpha) / (|m| + eps), 1) m

Traffic is the floor: 16 bytes read and 12 written a float32 parameter. Arithmetic is float32. For alpha of 1 and 2
every operation is rounded to nearest by itself, so that float32 results are the same bits on a GPU, under the
interpreter, and in the formula as written here with torch operators; for alpha between them powers go through exp2
and log2, which differ by a few units in the last place. A NaN stays visible in all three lists.

Optionally, at no further pass: gradients multiplied by a factor (of clipping and of unscaling), the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import Number
from suite.kernels.optimizer_parts import launch_tables as launch_tables

REGISTERS = 96  # five programs of four warps on a multiprocessor, each with four lists of loads in flight
REGISTERS_OF_POWERS = 128  # four of them: alpha between 1 and 2 pays for its logarithms


@triton.jit
def _power(x, exponent, ALPHA: tl.constexpr, ROOT: tl.constexpr):
    """Computes x >= 0 to the power alpha, or to 1 / alpha; ``exponent`` is that number where ``ALPHA`` is not 1 or
    2."""
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
    pointers,
    place,
    factor,
    seed,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    eps,
    decay,
    alpha,
    inverse_alpha,
    ALPHA: tl.constexpr,
):
    parameters, momenta, powers, gradients = pointers
    p = optimizer_parts.load(parameters, place)
    m = optimizer_parts.load(momenta, place)
    power = optimizer_parts.load(powers, place)
    g = optimizer_parts.load(gradients, place) * factor
    m = beta1 * m + one_minus_beta1 * g
    power = beta2 * power + one_minus_beta2 * _power(tl.abs(g), alpha, ALPHA, False)
    share = tl.div_rn(_power(power, inverse_alpha, ALPHA, True), tl.abs(m) + eps)
    share = tl.where(share > 1, 1.0, share)  # a NaN is not larger, and stays
    p = decay * p - lr * (share * m)
    optimizer_parts.store(parameters, place, p, seed)
    optimizer_parts.store(momenta, place, m)
    optimizer_parts.store(powers, place, power)


@triton.jit(do_not_specialize=["tensors", "seed"])
def acclip_kernel(
    table,
    blocks,
    tensors,
    seed,
    clip,
    found_inf,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    eps,
    decay,
    alpha,
    inverse_alpha,
    ALPHA: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    arguments = (
        optimizer_parts.gradient_factor(clip),
        seed,
        optimizer_parts.number(lr),
        beta1,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        eps,
        optimizer_parts.number(decay),
        alpha,
        inverse_alpha,
        ALPHA,
    )
    multi_tensor.over_block(_update, arguments, table, blocks, tensors, (0, 1, 2, 3), DTYPES, BLOCK, PIECE)


def acclip_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    powers: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: Number,
    beta1: float,
    beta2: float,
    eps: float,
    alpha: float,
    weight_decay: float = 0.0,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Takes one step, in place on all but ``gradients``: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements; ``momenta`` and ``powers`` share a dtype. ``tables`` comes from `launch_tables` and belongs to these
    parameters.

    ``clip`` (multiplies gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors of one
    element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, an int or an int32 on the device, rounds bfloat16 parameters stochastically; without
    one they round to nearest. The learning rate may be a tensor on the device, of shape [].

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    lr = optimizer_parts.precise(lr)
    hyper: dict[str, Number] = {
        "lr": lr,
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "eps": eps,
        "decay": 1 - lr * weight_decay,
        "alpha": alpha,
        "inverse_alpha": 1 / alpha,
    }
    optimizer_parts.step(
        acclip_kernel,
        tables,
        (parameters, momenta, powers),
        gradients,
        hyper,
        seed=optimizer_parts.seed_word(seed),
        clip=clip,
        found_inf=found_inf,
        ALPHA=_special(alpha),
    )


def _special(alpha: float) -> int:
    """Returns 1 or 2 where the powers of these are exact arithmetic, else 0: not every alpha compiles a kernel of its
    own."""
    return int(alpha) if alpha in (1, 2) else 0


def _manifest(
    parameter: torch.dtype, state: torch.dtype, alpha: float = 1.0, *, stochastic: bool = False, scaled: bool = False
) -> Manifest:
    return optimizer_parts.manifest(
        acclip_kernel,
        (parameter, state, state, parameter),
        read=(0, 1, 2, 3),
        written=(0, 1, 2),
        scaled=scaled,
        seeded=stochastic,
        registers=REGISTERS if _special(alpha) else REGISTERS_OF_POWERS,
        ALPHA=_special(alpha),
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32),
    "float32_scaled": _manifest(torch.float32, torch.float32, scaled=True),
    "float32_alpha_2": _manifest(torch.float32, torch.float32, 2.0),
    "float32_alpha_between": _manifest(torch.float32, torch.float32, 1.5),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_stochastic_scaled": _manifest(torch.bfloat16, torch.float32, stochastic=True, scaled=True),
}
