"""Makes LAMB's update (1904.00962, Algorithm 2) in two passes over parameters and moments, with the norms in the first.

    pass 1    m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2          leaves ||w||, ||u||
    pass 2    w <- w - lr ratio u

    u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + wd w

u is not stored between the passes: the second computes it again from the moments, which costs the 4 bytes that reading
it would have cost and saves writing it. Pass 1 reads 16 bytes a float32 parameter and writes 8, pass 2 reads 12 and
writes 4: 40 in all (apex: 52). Gradients stay as they are, and no buffer is needed.

Arithmetic is float32, every operation rounded by itself; on a GPU the square root and the quotient to two units in the
last place, as exactly rounded ones would cost more instructions than the bytes leave time for. A norm's sum depends on
its order anyway, so that two implementations agree to rounding and not to the bit.

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
from suite.kernels.portable import narrow
from techniques.large_batch.shared.trust_kernel import RATIOS_MANIFEST, ratio, room, sums_over_block, trust_ratios
from techniques.shared.adam_kernel import corrections


@triton.jit
def _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps):
    return m * inverse_correction / (tl.sqrt(v) * inverse_root_correction + eps) + decay * p


@triton.jit
def _moments(
    pointers,
    place,
    factor,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    decay,
    inverse_correction,
    inverse_root_correction,
    eps,
):
    parameters, first_moments, second_moments, gradients = pointers
    _, _, offsets, mask = place
    p = optimizer_parts.load(parameters, place)
    m = optimizer_parts.load(first_moments, place)
    v = optimizer_parts.load(second_moments, place)
    g = optimizer_parts.load(gradients, place) * factor
    stored_m = narrow(beta1 * m + one_minus_beta1 * g, first_moments.dtype.element_ty)
    stored_v = narrow(beta2 * v + one_minus_beta2 * (g * g), second_moments.dtype.element_ty)
    tl.store(first_moments + offsets, stored_m, mask=mask)
    tl.store(second_moments + offsets, stored_v, mask=mask)
    # Of the moments as stored: the second pass will see no others.
    m, v = stored_m.to(tl.float32), stored_v.to(tl.float32)
    u = _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps)
    u = tl.where(mask, u, 0.0)  # where nothing was loaded and eps is 0, u is 0 / 0
    return tl.sum(p * p), tl.sum(u * u)


@triton.jit(do_not_specialize=["tensors", "programs"])
def moments_kernel(
    table,
    blocks,
    tensors,
    programs,
    partials,
    clip,
    found_inf,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    decay,
    inverse_correction,
    inverse_root_correction,
    eps,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    arguments = (
        optimizer_parts.gradient_factor(clip),
        beta1,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        decay,
        optimizer_parts.number(inverse_correction),
        optimizer_parts.number(inverse_root_correction),
        eps,
    )
    sums_over_block(_moments, arguments, table, blocks, tensors, programs, partials, (0, 1, 2, 3), DTYPES, BLOCK, PIECE)


@triton.jit
def _apply(pointers, place, seed, ratios, lr, decay, inverse_correction, inverse_root_correction, eps):
    parameters, first_moments, second_moments = pointers
    tensor, _, _, _ = place
    p = optimizer_parts.load(parameters, place)
    m = optimizer_parts.load(first_moments, place)
    v = optimizer_parts.load(second_moments, place)
    u = _direction(p, m, v, decay, inverse_correction, inverse_root_correction, eps)
    optimizer_parts.store(parameters, place, p - lr * ratio(ratios, tensor) * u, seed)


@triton.jit(do_not_specialize=["tensors", "seed"])
def apply_kernel(
    table,
    blocks,
    tensors,
    seed,
    ratios,
    found_inf,
    lr,
    decay,
    inverse_correction,
    inverse_root_correction,
    eps,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    arguments = (
        seed,
        ratios,
        optimizer_parts.number(lr),
        decay,
        optimizer_parts.number(inverse_correction),
        optimizer_parts.number(inverse_root_correction),
        eps,
    )
    multi_tensor.over_block(_apply, arguments, table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


@torch.no_grad()
def lamb_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    tables: LaunchTables,
    *,
    step: Number,
    learning_rate: Number,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool = True,
    adapt: bool = True,
    phi: tuple[float, float] = (0.0, math.inf),
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Takes LAMB's step number ``step`` (from 1), in place: three launches for each combination of dtypes present, two
    without ``adapt``.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address; both moments share a
    dtype. ``tables`` comes from `launch_tables` and belongs to these parameters. Without ``adapt`` ratios are 1.

    ``clip`` (multiplies gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors of one
    element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, an int or an int32 on the device, rounds bfloat16 parameters stochastically; without
    one they round to nearest. The learning rate may be a tensor on the device, of shape [].

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    scalars = {"clip": clip, "found_inf": found_inf}
    betas = {"beta1": beta1, "one_minus_beta1": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2}
    correction, inverse_root = corrections(step, beta1, beta2) if bias_correction else (1.0, 1.0)
    direction: dict[str, Number] = {
        "decay": weight_decay,
        "inverse_correction": 1 / correction,
        "inverse_root_correction": inverse_root,
        "eps": eps,
    }
    changed = (parameters, first_moments, second_moments)
    for group in optimizer_parts.groups(tables, changed, (gradients,), list(scalars.values())):
        partials = room(group)
        optimizer_parts.launch(
            moments_kernel, group, betas | direction, programs=group.programs, partials=partials, **scalars
        )
        ratios = trust_ratios(group, partials, low=phi[0], high=phi[1]) if adapt else None
        optimizer_parts.launch(
            apply_kernel,
            group,
            {"lr": learning_rate} | direction,
            seed=optimizer_parts.seed_word(seed),
            ratios=ratios,
            found_inf=found_inf,
        )
    optimizer_parts.note_change(*changed)


REGISTERS = 72  # of pass 1: seven programs of four warps on a multiprocessor, each with four lists of loads in flight
ON_DEVICE = ("inverse_correction", "inverse_root_correction")


def _moments_manifest(parameter: torch.dtype, moment: torch.dtype, scaled: bool = False) -> Manifest:
    return optimizer_parts.manifest(
        moments_kernel,
        (parameter, moment, moment, parameter),
        read=(0, 1, 2, 3),
        written=(1, 2),
        scaled=scaled,
        sums=2,
        on_device=ON_DEVICE,
        registers=REGISTERS,
    )


def _apply_manifest(
    parameter: torch.dtype, moment: torch.dtype, scaled: bool = False, stochastic: bool = False
) -> Manifest:
    return optimizer_parts.manifest(
        apply_kernel,
        (parameter, moment, moment, parameter),
        read=(0, 1, 2),
        written=(0,),
        scaled=scaled,
        seeded=stochastic,
        on_device=ON_DEVICE,
    )


MANIFESTS = {
    "float32:moments": _moments_manifest(torch.float32, torch.float32),
    "float32:ratios": RATIOS_MANIFEST,
    "float32": _apply_manifest(torch.float32, torch.float32),
    "float32_scaled:moments": _moments_manifest(torch.float32, torch.float32, scaled=True),
    "float32_scaled": _apply_manifest(torch.float32, torch.float32, scaled=True),
    "bfloat16:moments": _moments_manifest(torch.bfloat16, torch.float32),
    "bfloat16": _apply_manifest(torch.bfloat16, torch.float32),
    "bfloat16_stochastic": _apply_manifest(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_stochastic_scaled:moments": _moments_manifest(torch.bfloat16, torch.float32, scaled=True),
    "bfloat16_stochastic_scaled": _apply_manifest(torch.bfloat16, torch.float32, scaled=True, stochastic=True),
    "bfloat16_moments:moments": _moments_manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_moments": _apply_manifest(torch.bfloat16, torch.bfloat16),
}
