"""Makes Lion's update (2302.06675, Algorithm 2) in one pass over parameters, momenta and gradients: one launch a step.

    theta <- theta (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
    m     <- beta2 m + (1 - beta2) g

Traffic is the floor: 12 bytes read and 8 written a float32 parameter, 10 in all a bfloat16 one with bfloat16 momentum.
Arithmetic is float32, every product and sum rounded by itself (no fused multiply-add, which memory-bound code can
afford): so float32 results are the same bits on a GPU, under the interpreter, and in the formula written with torch
operators. The sign of beta1 m + (1 - beta1) g depends on the rounding where the two terms cancel. As in torch.sign,
the sign of 0 and of NaN is 0; a NaN stays visible in the momentum.

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


@triton.jit
def _update(pointers, place, factor, seed, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay):
    parameters, momenta, gradients = pointers
    p = optimizer_parts.load(parameters, place)
    m = optimizer_parts.load(momenta, place)
    g = optimizer_parts.load(gradients, place) * factor
    u = beta1 * m + one_minus_beta1 * g
    sign = tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, 0.0))
    p = decay * p - lr * sign
    m = beta2 * m + one_minus_beta2 * g
    optimizer_parts.store(parameters, place, p, seed)
    optimizer_parts.store(momenta, place, m)


@triton.jit(do_not_specialize=["tensors", "seed"])
def lion_kernel(
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
    decay,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(clip)
    lr, decay = optimizer_parts.number(lr), optimizer_parts.number(decay)
    arguments = (factor, seed, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay)
    multi_tensor.over_block(_update, arguments, table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


def lion_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: Number,
    beta1: float,
    beta2: float,
    weight_decay: float,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Takes one Lion step, in place on ``parameters`` and ``momenta``: one launch for each combination of dtypes
    present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements. ``tables`` comes from `launch_tables` and belongs to these parameters.

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
        "decay": 1 - lr * weight_decay,
    }
    optimizer_parts.step(
        lion_kernel,
        tables,
        (parameters, momenta),
        gradients,
        hyper,
        seed=optimizer_parts.seed_word(seed),
        clip=clip,
        found_inf=found_inf,
    )


def _manifest(
    parameter: torch.dtype, momentum: torch.dtype, stochastic: bool = False, scaled: bool = False
) -> Manifest:
    return optimizer_parts.manifest(
        lion_kernel, (parameter, momentum, parameter), read=(0, 1, 2), written=(0, 1), scaled=scaled, seeded=stochastic
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32),
    "float32_scaled": _manifest(torch.float32, torch.float32, scaled=True),
    "bfloat16_momentum": _manifest(torch.float32, torch.bfloat16),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_float32_momentum": _manifest(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_stochastic_scaled": _manifest(torch.bfloat16, torch.float32, stochastic=True, scaled=True),
}
