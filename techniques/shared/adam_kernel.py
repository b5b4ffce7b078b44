"""Makes Adam's update (1412.6980, Algorithm 1; L2 regularisation or AdamW's decay) in one pass over four lists: one
launch.

    g     <- g + wd theta  (coupled)               theta <- (1 - lr wd) theta  (decoupled)
    m     <- beta1 m + (1 - beta1) g               v <- beta2 v + (1 - beta2) g^2
    theta <- theta - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

Traffic is the floor: 16 bytes read and 12 written a float32 parameter; with float32 moments 12 and 10 a bfloat16 one.
Arithmetic is float32, every operation rounded to nearest by itself (square root and quotient, too; memory-bound code
can afford it): so float32 results are the same bits on a GPU, under the interpreter, and in the formula as written
here with any operators that round so.

Optionally, at no further pass: gradients multiplied by a factor (of clipping and of unscaling), the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
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
REGISTERS_OF_RANDOM = 128  # four of them for random rounding: still far over the 30 KB of loads that hide memory


@triton.jit
def _update(
    pointers,
    place,
    factor,
    seed,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    decay,
    step_size,
    inverse_root_correction,
    eps,
    DECOUPLED: tl.constexpr,
):
    parameters, first_moments, second_moments, gradients = pointers
    p = optimizer_parts.load(parameters, place)
    m = optimizer_parts.load(first_moments, place)
    v = optimizer_parts.load(second_moments, place)
    g = optimizer_parts.load(gradients, place) * factor
    if not DECOUPLED:
        g = g + decay * p
    m = beta1 * m + one_minus_beta1 * g
    v = beta2 * v + one_minus_beta2 * (g * g)
    deviation = tl.sqrt_rn(v) * inverse_root_correction + eps
    if DECOUPLED:
        p = decay * p
    p = p - step_size * tl.div_rn(m, deviation)
    optimizer_parts.store(parameters, place, p, seed)
    optimizer_parts.store(first_moments, place, m)
    optimizer_parts.store(second_moments, place, v)


@triton.jit(do_not_specialize=["tensors", "seed"])
def adam_kernel(
    table,
    blocks,
    tensors,
    seed,
    clip,
    found_inf,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    decay,
    step_size,
    inverse_root_correction,
    eps,
    DECOUPLED: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Makes Adam's update, where ``decay`` is wd or, where ``DECOUPLED``, 1 - lr wd."""
    if optimizer_parts.skipped(found_inf):
        return
    arguments = (
        optimizer_parts.gradient_factor(clip),
        seed,
        beta1,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        optimizer_parts.number(decay),
        optimizer_parts.number(step_size),
        optimizer_parts.number(inverse_root_correction),
        eps,
        DECOUPLED,
    )
    multi_tensor.over_block(_update, arguments, table, blocks, tensors, (0, 1, 2, 3), DTYPES, BLOCK, PIECE)


def adam_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    tables: LaunchTables,
    *,
    step: Number,
    lr: Number,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Makes Adam's step number ``step`` (from 1; infinite: no bias correction), in place: one launch for each
    combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements; both moments share a dtype. ``tables`` comes from `launch_tables` and belongs to these parameters.

    ``clip`` (multiplies gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors of one
    element on the parameters' device; gradients themselves stay as they are.
    ``step`` and ``lr`` may be tensors on the device, of shape []; the host does not wait for them. Whether a step that
    was left out counts in ``step`` is the caller's business.

    ``seed``, different each step, an int or an int32 on the device, rounds bfloat16 parameters stochastically; without
    one they round to nearest.

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    lr = optimizer_parts.precise(lr)
    hyper: dict[str, Number] = {
        "beta1": beta1,
        "one_minus_beta1": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "decay": 1 - lr * weight_decay if decoupled else weight_decay,
        "eps": eps,
    }
    correction, inverse_root = corrections(step, beta1, beta2)
    hyper |= {"step_size": lr / correction, "inverse_root_correction": inverse_root}
    optimizer_parts.step(
        adam_kernel,
        tables,
        (parameters, first_moments, second_moments),
        gradients,
        hyper,
        seed=optimizer_parts.seed_word(seed),
        clip=clip,
        found_inf=found_inf,
        DECOUPLED=decoupled,
    )


def corrections(step: Number, beta1: float, beta2: float) -> tuple[Number, Number]:
    """Computes 1 - beta1^t and 1 / sqrt(1 - beta2^t) of the step t, in float64 and where t is."""
    if not isinstance(step, Tensor):
        return 1 - beta1**step, 1 / math.sqrt(1 - beta2**step)
    t = step.double()
    return 1 - beta1**t, (1 - beta2**t).sqrt().reciprocal()


def manifests(decoupled: bool) -> dict[str, Manifest]:
    """Returns the compilations for one kind of decay."""

    def manifest_of(
        parameter: torch.dtype, moment: torch.dtype, stochastic: bool = False, scaled: bool = False
    ) -> Manifest:
        return optimizer_parts.manifest(
            adam_kernel,
            (parameter, moment, moment, parameter),
            read=(0, 1, 2, 3),
            written=(0, 1, 2),
            scaled=scaled,
            seeded=stochastic,
            on_device=("step_size", "inverse_root_correction"),
            registers=REGISTERS_OF_RANDOM if stochastic else REGISTERS,
            DECOUPLED=decoupled,
        )

    return {
        "float32": manifest_of(torch.float32, torch.float32),
        "float32_scaled": manifest_of(torch.float32, torch.float32, scaled=True),
        "bfloat16": manifest_of(torch.bfloat16, torch.float32),
        "bfloat16_stochastic": manifest_of(torch.bfloat16, torch.float32, stochastic=True),
        "bfloat16_stochastic_scaled": manifest_of(torch.bfloat16, torch.float32, stochastic=True, scaled=True),
        "bfloat16_moments": manifest_of(torch.bfloat16, torch.bfloat16),
    }
