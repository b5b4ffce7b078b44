"""Makes LARS's update (1708.03888, Algorithm 1) in two passes: the norms of each tensor, then momentum and weights.

    pass 1    leaves ||w||, ||g + c w||        c = 0 (paper, timm) or beta (moco, optax)
    pass 2    v <- m v + inside ratio (g + beta w)        w <- w - outside v

The learning rate is ``inside`` or ``outside``, the other is 1. Pass 1 reads 8 bytes a float32 parameter, pass 2 reads
12 and writes 8: 28 in all. Tensors that do not adapt take the second pass only.

Arithmetic is float32, every operation rounded by itself. A norm's sum depends on its order, so that two implementations
agree to rounding and not to the bit.

Optionally, at no further pass: gradients multiplied by a factor (of clipping and of unscaling), the whole step
left out where a flag says so (all read from device scalars), and bfloat16 parameters rounded stochastically.
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

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Manifest
from suite.kernels.multi_tensor import LaunchTables
from suite.kernels.optimizer_parts import Number
from suite.kernels.optimizer_parts import launch_tables as launch_tables
from techniques.large_batch.lars.variants import INSIDE, SEPARATE, TIMM_EPS, Variant
from techniques.large_batch.shared.trust_kernel import RATIOS_MANIFEST, ratio, room, sums_over_block, trust_ratios


@triton.jit
def _squares(pointers, place, factor, coupled_decay):
    parameters, gradients = pointers
    p = optimizer_parts.load(parameters, place)
    u = optimizer_parts.load(gradients, place) * factor + coupled_decay * p
    return tl.sum(p * p), tl.sum(u * u)


@triton.jit(do_not_specialize=["tensors", "programs"])
def norms_kernel(
    table,
    blocks,
    tensors,
    programs,
    partials,
    clip,
    found_inf,
    coupled_decay,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    arguments = (optimizer_parts.gradient_factor(clip), coupled_decay)
    sums_over_block(_squares, arguments, table, blocks, tensors, programs, partials, (0, 2), DTYPES, BLOCK, PIECE)


@triton.jit
def _apply(pointers, place, factor, seed, ratios, momentum, decay, inside, outside):
    parameters, momenta, gradients = pointers
    tensor, _, _, _ = place
    p = optimizer_parts.load(parameters, place)
    v = optimizer_parts.load(momenta, place)
    g = optimizer_parts.load(gradients, place) * factor
    v = momentum * v + inside * ratio(ratios, tensor) * (g + decay * p)
    p = p - outside * v
    optimizer_parts.store(parameters, place, p, seed)
    optimizer_parts.store(momenta, place, v)


@triton.jit(do_not_specialize=["tensors", "seed"])
def apply_kernel(
    table,
    blocks,
    tensors,
    seed,
    ratios,
    clip,
    found_inf,
    momentum,
    decay,
    inside,
    outside,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(clip)
    inside, outside = optimizer_parts.number(inside), optimizer_parts.number(outside)
    arguments = (factor, seed, ratios, momentum, decay, inside, outside)
    multi_tensor.over_block(_apply, arguments, table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


@torch.no_grad()
def lars_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    tables: LaunchTables,
    *,
    learning_rate: Number,
    momentum: float,
    weight_decay: float,
    trust_coefficient: float = 1e-3,
    variant: Variant = "paper",
    adapt: bool = True,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Takes one LARS step, in place: three launches for each combination of dtypes present, one without ``adapt``.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address. ``tables`` comes from
    `launch_tables` and belongs to these parameters.

    ``clip`` (multiplies gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors of one
    element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, an int or an int32 on the device, rounds bfloat16 parameters stochastically; without
    one they round to nearest. The learning rate may be a tensor on the device, of shape [].

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    scalars = {"clip": clip, "found_inf": found_inf}
    separate = variant in SEPARATE
    inside, outside = (learning_rate, 1.0) if variant in INSIDE else (1.0, learning_rate)
    hyper: dict[str, Number] = {"momentum": momentum, "decay": weight_decay, "inside": inside, "outside": outside}
    for group in optimizer_parts.groups(tables, (parameters, momenta), (gradients,), list(scalars.values())):
        ratios = None
        if adapt:
            partials = room(group)
            optimizer_parts.launch(
                norms_kernel,
                group,
                {"coupled_decay": 0.0 if separate else weight_decay},
                programs=group.programs,
                partials=partials,
                **scalars,
            )
            ratios = trust_ratios(
                group,
                partials,
                coefficient=trust_coefficient,
                decay=weight_decay if separate else 0.0,
                eps=TIMM_EPS if variant == "timm" else 0.0,
            )
        optimizer_parts.launch(
            apply_kernel, group, hyper, seed=optimizer_parts.seed_word(seed), ratios=ratios, **scalars
        )
    optimizer_parts.note_change(parameters, momenta)


def _norms(parameter: torch.dtype, scaled: bool = False) -> Manifest:
    return optimizer_parts.manifest(norms_kernel, (parameter,) * 3, read=(0, 2), written=(), scaled=scaled, sums=2)


def _apply_manifest(
    parameter: torch.dtype, momentum: torch.dtype, scaled: bool = False, stochastic: bool = False, **constants: Any
) -> Manifest:
    return optimizer_parts.manifest(
        apply_kernel,
        (parameter, momentum, parameter),
        read=(0, 1, 2),
        written=(0, 1),
        scaled=scaled,
        seeded=stochastic,
        **constants,
    )


MANIFESTS = {
    "float32:norms": _norms(torch.float32),
    "float32:ratios": RATIOS_MANIFEST,
    "float32": _apply_manifest(torch.float32, torch.float32),
    "float32_unadapted": _apply_manifest(torch.float32, torch.float32, ratios=None),
    "float32_scaled:norms": _norms(torch.float32, scaled=True),
    "float32_scaled": _apply_manifest(torch.float32, torch.float32, scaled=True),
    "bfloat16:norms": _norms(torch.bfloat16),
    "bfloat16": _apply_manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _apply_manifest(torch.bfloat16, torch.bfloat16, stochastic=True),
    "bfloat16_stochastic_scaled:norms": _norms(torch.bfloat16, scaled=True),
    "bfloat16_stochastic_scaled": _apply_manifest(torch.bfloat16, torch.bfloat16, scaled=True, stochastic=True),
    "bfloat16_float32_momentum": _apply_manifest(torch.bfloat16, torch.float32),
}
