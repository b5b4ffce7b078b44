"""Packs numbers in few bits: groups of 256, each with its least value and its step, rounded up or down at random.

Chen et al., "ActNN" (ICML 2021, arXiv 2104.14129), section 4.1. Of a group of G = 256 numbers h, in b bits:

    m = min h, rounded down       s = (max h - m) / (2^b - 1), rounded up       both bfloat16
    code = floor((h - m) / s + u), u uniform in [0, 1)          h' = m + s code          E[h'] = h

Rounded down and up, m and s keep every number of the group within reach of a code: rounded to nearest, the ends of the
group would be clipped, and the mean off. A number takes (b + 32 / G) / 8 bytes. For ``actnn``, ``gact``, ``mesa`` and
``acgc``. A group in which a number is not finite comes back as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 256
WIDTHS = (1, 2, 4, 8)
"""Bits that divide a byte."""

PIECE = 2**22  # numbers, at least those of a group
LEAST_STEP = 2.0**-126  # below, its inverse is not finite: such a group comes back as its least value


@dataclass(frozen=True)
class Packed:
    """Holds rows of equal length, packed: ``codes`` uint8 [rows, ceil(length bits / 8)], the first number of a byte in
    its lowest bits; ``least`` and ``steps`` bfloat16 [rows, ceil(length / 256)]. ``dtype`` is the rows' own."""

    codes: Tensor
    least: Tensor
    steps: Tensor
    bits: int
    length: int
    dtype: torch.dtype


def packed_bytes(rows: int, length: int, bits: int) -> int:
    """Counts the bytes of ``rows`` packed rows of ``length`` numbers."""
    return rows * (math.ceil(length * bits / 8) + 4 * math.ceil(length / GROUP))


def ranges(rows: Tensor) -> Tensor:
    """Computes the largest less the least number of each group of ``rows`` [rows, length]: float32 [rows, groups]."""
    groups = _grouped(rows)
    return groups.amax(-1).float() - groups.amin(-1).float()


def pack(rows: Tensor, bits: int, generator: torch.Generator) -> Packed:
    """Packs ``rows`` [rows, length], of any floating-point type, in ``bits`` each. ``generator``, on the CPU, has the
    noise.

    Raises ValueError for bits that do not divide a byte.
    """
    if bits not in WIDTHS:
        raise ValueError(f"numbers are packed in {', '.join(map(str, WIDTHS))} bits, not in {bits}")
    if launchable(rows):
        from techniques.shared import packed_kernel as kernel

        codes, least, steps = kernel.pack(rows.contiguous(), bits, seed_of(generator))
    else:
        pieces = [codes_of(piece, bits, generator) for piece in _pieces(rows, rows.shape[1])]
        along = 0 if len(rows) > 1 else 1
        codes, least, steps = (torch.cat(parts, along) if len(parts) > 1 else parts[0] for parts in zip(*pieces))
    return Packed(codes, least, steps, bits, rows.shape[1], rows.dtype)


def codes_of(rows: Tensor, bits: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Computes codes, least values and steps of :class:`Packed`, by torch's operators."""
    numbers = _grouped(rows.float())
    least = rounded_down(numbers.amin(-1))
    steps = rounded_up((numbers.amax(-1) - least.float()) / (2**bits - 1))
    least = least.where(steps.isfinite(), torch.nan)
    scaled = (numbers - least.float()[..., None]).mul_(inverse(steps)[..., None])
    noise = torch.rand(rows.shape, generator=on_device(generator, rows.device), device=rows.device)
    levels = scaled.flatten(1)[:, : rows.shape[1]].add_(noise).floor_()
    codes = levels.nan_to_num_(0.0).clamp_(0, 2**bits - 1).to(torch.uint8)
    return in_bytes(codes, bits), least, steps


def unpack(packed: Packed) -> Tensor:
    """Returns the rows [rows, length], in their own type."""
    if launchable(packed.codes, packed.dtype):
        from techniques.shared import packed_kernel as kernel

        return kernel.unpack(packed.codes, packed.least, packed.steps, packed.bits, packed.length, packed.dtype)
    rows = torch.empty(len(packed.codes), packed.length, dtype=packed.dtype, device=packed.codes.device)
    in_pieces = zip(
        _pieces(rows, packed.length),
        _pieces(packed.codes, packed.length, 8 // packed.bits),
        _pieces(packed.least, packed.length, GROUP),
        _pieces(packed.steps, packed.length, GROUP),
        strict=True,
    )
    for piece, codes, least, steps in in_pieces:
        piece.copy_(numbers_of(Packed(codes, least, steps, packed.bits, piece.shape[1], packed.dtype)))
    return rows


@dataclass(frozen=True)
class Rows:
    """Holds rows of equal length, packed; those of the same bits together. ``places`` are the rows of each part."""

    parts: tuple[Packed, ...]
    places: tuple[list[int], ...]

    def numbers(self) -> Tensor:
        """Returns all numbers, row after row."""
        if len(self.parts) == 1:
            return unpack(self.parts[0]).flatten()
        first = self.parts[0]
        rows = torch.empty(sum(map(len, self.places)), first.length, dtype=first.dtype, device=first.codes.device)
        for part, places in zip(self.parts, self.places, strict=True):
            rows[places] = unpack(part)
        return rows.flatten()


def packed_rows(rows: Tensor, bits: Sequence[int], generator: torch.Generator) -> Rows:
    """Packs ``rows`` [rows, length], each in its own ``bits``, with the generator's noise."""
    widths = sorted(set(bits))
    if len(widths) == 1:
        return Rows((pack(rows, widths[0], generator),), (list(range(len(rows))),))
    places = tuple([row for row, bit in enumerate(bits) if bit == width] for width in widths)
    parts = tuple(pack(rows[same], width, generator) for same, width in zip(places, widths, strict=True))
    return Rows(parts, places)


def numbers_of(packed: Packed) -> Tensor:
    """Computes :func:`unpack` by torch's operators, float32."""
    numbers = _grouped(from_bytes(packed.codes, packed.bits, packed.length).float())
    numbers = numbers.mul_(packed.steps.float()[..., None]).add_(packed.least.float()[..., None])
    return numbers.flatten(1)[:, : packed.length]


def _pieces(rows: Tensor, length: int, span: int = 1) -> Sequence[Tensor]:
    """Cuts ``rows`` of ``length`` numbers, whose entries stand for ``span`` of them, into pieces of PIECE numbers or a
    row: what is made of a piece for a moment stays small."""
    if len(rows) > 1:
        return rows.split(max(1, PIECE // length))
    return rows.split(PIECE // span, 1)


def launchable(rows: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Tells whether the kernel takes rows of this ``dtype``, their own unless it is named. Loads Triton for CUDA
    tensors."""
    if not rows.is_cuda:
        return False
    from suite.kernels.optimizer_parts import DTYPES

    return (dtype or rows.dtype) in DTYPES


def on_device(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Returns the generator itself or, where it is not on the ``device``, one there that follows from it."""
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(seed_of(generator))


def seed_of(generator: torch.Generator) -> int:
    """Draws a seed below 2^31."""
    return int(torch.randint(2**31, (), generator=generator))


def inverse(steps: Tensor) -> Tensor:
    """Computes 1 / steps, float32; 0 where a step is 0, too small or not finite."""
    steps = steps.float()
    return torch.where((steps >= LEAST_STEP) & steps.isfinite(), 1 / steps, 0.0)


# bfloat16 in a direction ----------------------------------------------------------------------------------------------


def rounded_down(x: Tensor) -> Tensor:
    """Returns the largest bfloat16 that is at most float32 ``x``; NaN stays."""
    return -rounded_up(-x)


def rounded_up(x: Tensor) -> Tensor:
    """Returns the least bfloat16 that is at least float32 ``x``; NaN stays."""
    nearest = x.bfloat16()
    above = torch.nextafter(nearest, torch.full_like(nearest, torch.inf))
    return torch.where(nearest.float() < x, above, nearest)


# bytes ----------------------------------------------------------------------------------------------------------------


def in_bytes(codes: Tensor, bits: int) -> Tensor:
    """Packs ``codes`` uint8 [rows, length], each below 2^bits, as uint8 [rows, ceil(length bits / 8)]."""
    if bits == 8:
        return codes
    in_a_byte = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % in_a_byte)).view(len(codes), -1, in_a_byte)
    return (padded << _places(bits, codes.device)).sum(-1, dtype=torch.uint8)


def from_bytes(stored: Tensor, bits: int, length: int) -> Tensor:
    """Returns the codes, as the inverse of :func:`in_bytes`."""
    if bits == 8:
        return stored
    return ((stored[..., None] >> _places(bits, stored.device)) & (2**bits - 1)).flatten(1)[:, :length]


def _places(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def _grouped(rows: Tensor) -> Tensor:
    """Returns [rows, length] as [rows, groups, 256], the last group filled up with its last number."""
    missing = -rows.shape[1] % GROUP
    if missing:
        rows = torch.cat([rows, rows[:, -1:].expand(-1, missing)], 1)
    return rows.reshape(len(rows), -1, GROUP)
