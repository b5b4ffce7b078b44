"""Has what the multi-tensor kernels of optimizers share: scaled gradients, random rounding, joint norms, launch,
manifest.

On the device, each at no pass over memory of its own:

* `gradient_factor`, `skipped`: the factor of clipping and of mixed precision's unscaling, and a flag for what is not
  finite, read from scalars on the device, so that the host need not wait for them;
* `random_bits`, `narrow_stochastic`: bfloat16 stores that round up with the probability of the dropped fraction.
  Unbiased, so updates smaller than half a unit in the last place are not lost (Gupta et al. 2015, section 3);
* `square_sums_kernel`, `total`: a norm over all tensors in one launch. A fixed number of programs leaves one partial
  sum each, and each program of the next launch adds them up: no atomics, so the same bits every time.

On the host `step` launches one kernel over all tensors, and `manifest` says how it is compiled and what it may cost;
both know a kernel's arguments by name. Parameters are updated in place, hence no autotuning: trial runs would be steps.

Import this module, not its functions: the machine code's cache then sees that a kernel depends on it.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from suite.kernels import multi_tensor
from suite.kernels.manifest import LANE_INSTRUCTIONS_PER_BYTE, Budget, Manifest
from suite.kernels.multi_tensor import Group, LaunchTables
from suite.kernels.portable import narrow

Number = float | Tensor
"""A hyper-parameter on the host, or on the device, of shape []."""

BLOCK = 2048
PIECE = 512
NUM_WARPS = 4
OPTIONS = {"enable_fp_fusion": False}
"""Every operation is rounded by itself: memory-bound code can afford it, and gets the interpreter's bits."""

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
"""What kernels take, as Triton names it."""

PARTIALS = 1024
"""Partial sums of a norm at most: eight programs for each of an H100's or H200's 132 multiprocessors, all resident."""

SCALARS = ("clip", "found_inf")
ARGUMENTS = {
    **dict.fromkeys(("table", "blocks"), "*i64"),
    **dict.fromkeys(("partials", "ratios", *SCALARS), "*fp32"),
    **dict.fromkeys(("tensors", "programs", "count", "seed"), "i32"),
}
"""Types of kernels' arguments by name, where they are not float32 numbers."""


@triton.jit
def number(x):
    """Returns a hyper-parameter: ``x`` itself or, where it is on the device, what the float32 pointer ``x`` points
    to."""
    if isinstance(x, float):  # as the interpreter passes numbers
        return x
    elif x.dtype.is_ptr():
        return tl.load(x)
    else:
        return x


@triton.jit
def gradient_factor(clip):
    """Returns what gradients are multiplied by; ``clip`` is a float32 pointer, or None for 1."""
    if clip is not None:
        return tl.load(clip)
    else:
        return 1.0


@triton.jit
def skipped(found_inf):
    """Tells whether the step is to be left out; ``found_inf`` is a float32 pointer (0: step), or None."""
    if found_inf is not None:
        return tl.load(found_inf) != 0.0
    else:
        return False


@triton.jit
def _mixed(x):
    """Computes a bijection of 32-bit words in which each input bit flips each output bit half of the time
    (lowbias32)."""
    x = x ^ (x >> 16)
    x = tl.mul(x, 0x21F0AAAD, sanitize_overflow=False)
    x = x ^ (x >> 15)
    x = tl.mul(x, 0x735A2D97, sanitize_overflow=False)
    return x ^ (x >> 15)


@triton.jit
def random_bits(seed, tensor, first, offsets):
    """Returns 32 random bits (uint32) for the elements ``first + offsets`` of ``tensor``, the same whatever the block
    size.

    ``seed`` is an int32 that differs from step to step; keep it out of Triton's specialisation. A hash of the
    element's number at a tenth of Philox's instructions: good enough to round with, not to draw samples with.
    """
    stream = _mixed(seed.to(tl.uint32) ^ _mixed(tensor.to(tl.uint32)))
    stream = _mixed(stream ^ (first >> 32).to(tl.uint32))
    number = tl.add(first.to(tl.uint32), offsets.to(tl.uint32), sanitize_overflow=False)
    # Added after a multiplication: an exclusive or alone would give each stream the same words in another order.
    number = tl.mul(number, 0x9E3779B9, sanitize_overflow=False)
    return _mixed(tl.add(number, stream, sanitize_overflow=False))


@triton.jit
def narrow_stochastic(x, bits, DTYPE: tl.constexpr):
    """Returns float32 ``x`` as ``DTYPE``; as bfloat16, rounded up or down with the lower 16 of ``bits``, so that E = x.

    NaN and infinity stay; between the largest bfloat16 and 2**128 the upper neighbour is infinity. Other dtypes are
    rounded to nearest.
    """
    if tl.bfloat16 == DTYPE:
        word = x.to(tl.uint32, bitcast=True)
        rounded = tl.add(word, bits & 0xFFFF, sanitize_overflow=False) >> 16
        # The carry would turn a NaN with a full mantissa into zero.
        upper = tl.where(x == x, rounded, (word >> 16) | 0x40)
        return upper.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return narrow(x, DTYPE)


@triton.jit
def load(pointer, place):
    """Returns what is at ``place`` (see `multi_tensor.over_block`), as float32; 0 where its mask is false."""
    _, _, offsets, mask = place
    return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(pointer, place, x, seed=None):
    """Writes float32 ``x`` to ``place``, rounded to nearest or, with a ``seed`` (see `random_bits`), an int32 or a
    pointer to one, stochastically."""
    tensor, first, offsets, mask = place
    if seed is None:
        rounded = narrow(x, pointer.dtype.element_ty)
    else:
        bits = random_bits(number(seed), tensor, first, offsets)
        rounded = narrow_stochastic(x, bits, pointer.dtype.element_ty)
    tl.store(pointer + offsets, rounded, mask=mask)


@triton.jit
def total(partials, count, PARTIALS: tl.constexpr):
    """Returns the sum of the first ``count`` <= ``PARTIALS`` float32 partial sums, the same bits in every program."""
    numbers = tl.arange(0, PARTIALS)
    return tl.sum(tl.load(partials + numbers, mask=numbers < count, other=0.0))


@triton.jit(do_not_specialize=["tensors", "programs"])
def square_sums_kernel(
    table,
    blocks,
    tensors,
    programs,
    partials,
    ROW: tl.constexpr,
    LISTS: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes each program's share of the sum of squares of the list ``ROW``, in float32, to ``partials``.

    ``programs`` is the length of ``blocks``, of which each program takes every ``num_programs``-th.
    """
    offsets = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for number in range(tl.program_id(0), programs, tl.num_programs(0)):
        tensor, first = multi_tensor.block(blocks + number - tl.program_id(0), BLOCK)
        address = multi_tensor.address(table, ROW, tensor, tensors)
        remaining = multi_tensor.elements(table, LISTS, tensor, tensors) - first
        if multi_tensor.vectorizable(address, remaining, BLOCK):
            x = tl.load(multi_tensor.pointer(address, DTYPE, True) + first + offsets).to(tl.float32)
            squares += x * x
        else:
            start = multi_tensor.pointer(address, DTYPE, False) + first
            here = tl.minimum(remaining, BLOCK).to(tl.int32)  # comparing 64 bits takes twice the instructions
            x = tl.load(start + offsets, mask=offsets < here, other=0.0).to(tl.float32)
            squares += x * x
    tl.store(partials + tl.program_id(0), tl.sum(squares))


def launchable(tensors: Sequence[Tensor]) -> bool:
    """Tells whether kernels take these tensors: on one GPU, contiguous, float32 or bfloat16. Torch takes others."""
    return (
        bool(tensors)
        and tensors[0].is_cuda
        and len(set(map(Tensor.get_device, tensors))) == 1
        and set(map(attrgetter("dtype"), tensors)) <= DTYPES.keys()
        and all(map(Tensor.is_contiguous, tensors))
    )


def launch_tables() -> LaunchTables:
    """Returns what a step keeps between calls: one for each list of parameters that is updated together."""
    return LaunchTables(BLOCK)


def groups(
    tables: LaunchTables,
    lasting: Sequence[Sequence[Tensor]],
    passing: Sequence[Sequence[Tensor]],
    scalars: Sequence[Tensor | None] = (),
) -> list[Group]:
    """Returns the `LaunchTables.groups` of parameters, then their states (lasting), and the rest, with all that kernels
    require.

    Raises TypeError for dtypes other than float32 and bfloat16, or states of two dtypes; ValueError for a scalar that
    is not one float32 on the tensors' device, where the kernel would read it; and what `LaunchTables.groups` raises.
    """
    launches = tables.groups(lasting, passing)
    for group in launches:
        if unknown := set(group.dtypes) - set(DTYPES):
            raise TypeError(f"the kernel knows no {_names(unknown)}: give float32 or bfloat16 tensors")
        if len(states := set(group.dtypes[1 : len(lasting)])) > 1:
            raise TypeError(f"the states of parameters are {_names(states)}: give both one dtype")
        device = group.table.device
        for scalar in scalars:
            if scalar is not None and (
                scalar.numel() != 1 or scalar.dtype != torch.float32 or scalar.device.type != device.type
            ):
                raise ValueError(
                    f"a scalar for the kernel is {tuple(scalar.shape)} {scalar.dtype} on {scalar.device}: "
                    f"give one float32 on {device}"
                )
    return launches


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted(map(str, dtypes)))


def launch(kernel: Any, group: Group, hyper: Mapping[str, Number], **arguments: Any) -> None:
    """Run ``kernel`` over ``group``. ``hyper`` and ``arguments`` are its own, by name: numbers, and all else."""
    numbers = {name: _passed(number, group.table.device) for name, number in hyper.items()}
    with torch.cuda.device_of(group.table):
        kernel[(group.programs,)](
            group.table,
            group.blocks,
            group.tensors,
            **numbers,
            **arguments,
            DTYPES=tuple(DTYPES[dtype] for dtype in group.dtypes),
            BLOCK=BLOCK,
            PIECE=PIECE,
            num_warps=NUM_WARPS,
            **OPTIONS,
        )


def precise(number: Number) -> Number:
    """Returns ``number`` in float64, which Python's numbers have and a tensor need not."""
    return number.double() if isinstance(number, Tensor) else number


def _passed(number: Number, device: torch.device) -> Number:
    """Returns a hyper-parameter as kernels take it: an integer would compile another kernel, as would float64."""
    return number.to(device, torch.float32) if isinstance(number, Tensor) else float(number)


@torch.no_grad()
def step(
    kernel: Any,
    tables: LaunchTables,
    changed: Sequence[Sequence[Tensor]],
    gradients: Sequence[Tensor],
    hyper: Mapping[str, Number],
    **arguments: Any,
) -> None:
    """Makes one launch of ``kernel`` for each combination of dtypes, in place on ``changed``: parameters, then their
    states.

    ``hyper`` and ``arguments`` are those of `launch`; tensors among them are device scalars. Raises what `groups`
    raises, before anything has changed.
    """
    scalars = [argument for name, argument in arguments.items() if isinstance(argument, Tensor) and name != "seed"]
    for group in groups(tables, changed, (gradients,), scalars):
        launch(kernel, group, hyper, **arguments)
    note_change(*changed)


def note_change(*changed: Sequence[Tensor]) -> None:
    """Tells autograd that these tensors changed, as torch's own in-place operators do."""
    for tensors in changed:
        increment_version(tensors)


def seed_word(seed: int | Tensor | None) -> int | Tensor | None:
    """Returns ``seed``, of any size, as the int32 that `random_bits` takes; a tensor, on the device, is one already."""
    return seed % 2**31 if isinstance(seed, int) else seed


def streaming_budget(read_bytes: Sequence[int], written_bytes: Sequence[int], registers: int = 64) -> Budget:
    """Returns what a kernel may cost that reads and writes these bytes an element of each list once, in straight-line
    code.

    Every access of the whole blocks' path is 16 bytes wide. ``registers`` bounds how many programs share a
    multiprocessor's 65,536: some 30 KB of loads in flight there hide the latency of memory. Lists of one width share a
    layout; others meet in shared memory, one list of a program's block at a time.
    """
    accesses = BLOCK // (NUM_WARPS * 32 * multi_tensor.VECTOR_BYTES.value)  # of a thread, a byte of an element
    return Budget(
        registers=registers,
        shared_bytes=0 if len({*read_bytes, *written_bytes}) == 1 else BLOCK * 4,
        wide_loads=accesses * sum(read_bytes),
        wide_stores=accesses * sum(written_bytes),
        instructions_per_element=LANE_INSTRUCTIONS_PER_BYTE * (sum(read_bytes) + sum(written_bytes)),
    )


def manifest(
    kernel: Any,
    dtypes: Sequence[torch.dtype],
    *,
    read: Sequence[int],
    written: Sequence[int],
    scaled: bool = False,
    seeded: bool = False,
    on_device: Sequence[str] = (),
    sums: int = 0,
    registers: int = 64,
    **constants: Any,
) -> Manifest:
    """Returns the manifest of ``kernel`` over lists of these ``dtypes``, as `launch` compiles it.

    ``read`` and ``written`` are the numbers of the lists that it streams. ``scaled``: all of `SCALARS` are given;
    ``seeded``: it rounds stochastically. The hyper-parameters ``on_device`` are read there. Programs add up ``sums``
    numbers over their elements. ``constants`` are the kernel's own. Its other arguments have the types in `ARGUMENTS`,
    or are float32 numbers.
    """
    constants |= {"DTYPES": tuple(DTYPES[dtype] for dtype in dtypes), "BLOCK": BLOCK, "PIECE": PIECE}
    constants |= {} if scaled else dict.fromkeys(SCALARS)
    constants |= {} if seeded else {"seed": None}
    types = ARGUMENTS | dict.fromkeys(on_device, "*fp32") | ({"seed": "*i32"} if seeded else {})
    signature = {name: types.get(name, "fp32") for name in kernel.arg_names if name not in constants}
    read_bytes, written_bytes = ([dtypes[row].itemsize for row in rows] for rows in (read, written))
    budget = streaming_budget(read_bytes, written_bytes, registers)
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants={name: value for name, value in constants.items() if name in kernel.arg_names},
        elements_per_program=BLOCK,
        aligned=tuple(name for name, kind in signature.items() if kind.startswith("*")),
        num_warps=NUM_WARPS,
        options=OPTIONS,
        budget=replace(budget, shared_bytes=max(budget.shared_bytes, reduction_bytes(sums))),
    )


def reduction_bytes(sums: int) -> int:
    """Returns the shared memory of a program that adds up: a word of each warp for each sum, beside what Hopper
    keeps."""
    return 1024 + 4 * NUM_WARPS * sums if sums else 0
