"""Makes SGD's step with momentum (torch's form, the learning rate outside) in one pass over three lists: one launch a
step.

    g <- g + lambda theta          v <- mu v + (1 - d) g          theta <- theta - eta v,  or theta - eta (g + mu v)

Traffic is the floor: 12 bytes read and 8 written a float32 parameter, 10 in all a bfloat16 one with bfloat16 velocity.
In the first step (1 - d) is 1 and v is 0. Arithmetic is float32, every product and sum rounded by itself (no fused
multiply-add, which memory-bound code can afford): so float32 results are the same bits on a GPU, under the interpreter,
and in the formula written with torch operators.

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

REGISTERS = 96  # five programs of four warps on a multiprocessor, each with three lists of loads in flight


@triton.jit
def _update(pointers, place, factor, seed, lr, momentum, push, weight_decay, NESTEROV: tl.constexpr):
    parameters, velocities, gradients = pointers
    p = optimizer_parts.load(parameters, place)
    v = optimizer_parts.load(velocities, place)
    g = optimizer_parts.load(gradients, place) * factor
    g = g + weight_decay * p
    v = momentum * v + push * g
    direction = v
    if NESTEROV:
        direction = g + momentum * v
    p = p - lr * direction
    optimizer_parts.store(parameters, place, p, seed)
    optimizer_parts.store(velocities, place, v)


@triton.jit(do_not_specialize=["tensors", "seed"])
def sgd_kernel(
    table,
    blocks,
    tensors,
    seed,
    clip,
    found_inf,
    lr,
    momentum,
    push,
    weight_decay,
    NESTEROV: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    if optimizer_parts.skipped(found_inf):
        return
    factor = optimizer_parts.gradient_factor(clip)
    lr, push = optimizer_parts.number(lr), optimizer_parts.number(push)
    arguments = (factor, seed, lr, momentum, push, weight_decay, NESTEROV)
    multi_tensor.over_block(_update, arguments, table, blocks, tensors, (0, 1, 2), DTYPES, BLOCK, PIECE)


def sgd_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    tables: LaunchTables,
    *,
    lr: Number,
    momentum: float,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    first: bool | Tensor = False,
    clip: Tensor | None = None,
    found_inf: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> None:
    """Makes one step, in place on ``parameters`` and ``velocities``: one launch for each combination of dtypes present.

    Tensors are contiguous, float32 or bfloat16 each, in columns of equal shape, at any address, of any number of
    elements. ``tables`` comes from `launch_tables` and belongs to these parameters. ``first``: the velocities are
    zeros, and the gradient enters undampened; a bool, or one on the device, of shape [].

    ``clip`` (multiplies gradients) and ``found_inf`` (where it is not 0, nothing is written) are float32 tensors of one
    element on the parameters' device; gradients themselves stay as they are.
    ``seed``, different each step, an int or an int32 on the device, rounds bfloat16 parameters stochastically; without
    one they round to nearest. The learning rate may be a tensor on the device, of shape [].

    Raises TypeError for other dtypes, ValueError for scalars elsewhere, and what `LaunchTables.groups` raises.
    """
    push: Number = torch.where(first, 1.0, 1 - dampening) if isinstance(first, Tensor) else 1 - dampening * (not first)
    hyper: dict[str, Number] = {
        "lr": optimizer_parts.precise(lr),
        "momentum": momentum,
        "push": push,
        "weight_decay": weight_decay,
    }
    optimizer_parts.step(
        sgd_kernel,
        tables,
        (parameters, velocities),
        gradients,
        hyper,
        seed=optimizer_parts.seed_word(seed),
        clip=clip,
        found_inf=found_inf,
        NESTEROV=nesterov,
    )


def _manifest(
    parameter: torch.dtype,
    velocity: torch.dtype,
    *,
    nesterov: bool = False,
    stochastic: bool = False,
    scaled: bool = False,
) -> Manifest:
    return optimizer_parts.manifest(
        sgd_kernel,
        (parameter, velocity, parameter),
        read=(0, 1, 2),
        written=(0, 1),
        scaled=scaled,
        seeded=stochastic,
        registers=REGISTERS,
        NESTEROV=nesterov,
    )


MANIFESTS = {
    "float32": _manifest(torch.float32, torch.float32),
    "float32_scaled": _manifest(torch.float32, torch.float32, scaled=True),
    "float32_nesterov": _manifest(torch.float32, torch.float32, nesterov=True),
    "bfloat16": _manifest(torch.bfloat16, torch.bfloat16),
    "bfloat16_stochastic": _manifest(torch.bfloat16, torch.float32, stochastic=True),
    "bfloat16_stochastic_scaled": _manifest(torch.bfloat16, torch.float32, stochastic=True, scaled=True),
}
