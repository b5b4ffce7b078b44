"""Computes the dynamic map of low-bit optimizer states as arithmetic: a float format whose exponent counts decades (for
``adam8bit_blockwise`` and ``adam4bit_rank1``).

Dettmers (1511.04561, section 3; 2110.02861, section 2.1) describes a table: decade d of D, (10^(d-D), 10^(d-D+1)], is
cut into n_d = n_0 2^d equal cells, whose centres are the values; 0 and 1 are values, too. So the code k of a magnitude
has the decade in its highest bit and a linear fraction below it, as a float has:

    k = n_d + i   stands for   10^(d-D+1) (0.1 + 0.9 (i + 1/2) / n_d),      0 <= i < n_d

and the nearest value is where a straight line leads, one for each decade: k = floor(y slope_d + offset_d), where a
decade ends 0.9 / n_d above its last power of ten, half-way between the neighbours there. So a GPU, which has no
instructions for tables, needs none: the line's rounding moves the border of two values by 1e-4 of their distance at
most. On a CPU the line is asked once for each bfloat16, and one look at the neighbours settles the nearest exactly.

A signed map of b bits has n_0 = 1 and D = b - 1 decades for either sign (and no -1: the largest of a block is kept
exactly where it is positive), an unsigned one n_0 = 2. Codes are numbers in the sorted table, as in bitsandbytes and
torchao: 0 has 2^(b-1) - 1 where signed, and 0 where not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BELOW_TWICE = 2.2499
"""Times a decade's offset, 8/9 n_d: just under 2 n_d, the first code of the next."""

OCTAVES, LINES_AT, VALUES_AT, TABLE_WORDS = 512, 512, 576, 1600
"""Signs and exponents of float32; where a kernel's table has the lines to encode along and those to decode along, and
its length."""


class DynamicMap:
    """Holds the map of ``bits`` bits, ``signed`` or not. Make it where a module is loaded: its tensors are real then.

    Attributes: ``zero``, the code of 0; ``values``, what each code stands for, rising: float32 [2^bits]; ``lines``:
    (start, slope, offset) by rising start, where the first is zero's and the last is that of 1; ``table``: the lines as
    kernels look them up (`techniques.precision.shared.dynamic_map_kernel`), int32.
    """

    def __init__(self, bits: int, signed: bool) -> None:
        self.bits, self.signed = bits, signed
        self.decades, self.cells = bits - 1, 1 if signed else 2
        self.zero = 2**self.decades - 1 if signed else 0
        self.values, self.lines = self._values(), self._lines()
        halves = (self.values[1:].double() + self.values[:-1].double()) / 2
        self._borders = torch.cat(
            [halves.new_tensor([-math.inf]), _rounded_down(halves), halves.new_tensor([math.inf])]
        )
        self._borders = self._borders.float()
        # the sign, exponent and seven bits of a float32, as a bfloat16 has them: the line's code at its smallest
        words = torch.arange(2**16, dtype=torch.int32)
        self.table = self._table()
        self._guesses = self.guess((words << 16).view(torch.float32).nan_to_num(0.0).clamp(-1, 1)).int()

    def _value(self, k: int) -> float:
        """Returns the magnitude that k stands for, from n_0 on."""
        d = (k // self.cells).bit_length() - 1
        n = self.cells * 2**d
        return 1.0 if d == self.decades else 10.0 ** (d - self.decades + 1) * (0.1 + 0.9 * (k - n + 0.5) / n)

    def _values(self) -> Tensor:
        magnitudes = [self._value(k) for k in range(self.cells, self.cells * 2**self.decades + 1)]
        negative = [-magnitude for magnitude in reversed(magnitudes[:-1])] if self.signed else []
        return torch.tensor([*negative, 0.0, *magnitudes], dtype=torch.float64).float()

    def _lines(self) -> tuple[tuple[float, float, float], ...]:
        lines, start = [(-math.inf, 0.0, self.cells - 0.5)], 0.5 * self._value(self.cells)
        for d in range(self.decades):
            n, power = self.cells * 2**d, 10.0 ** (d - self.decades + 1)
            lines.append((start, n / (0.9 * power), n * 8 / 9))
            start = power * (1 + 0.9 / n)
        last = self.cells * 2**self.decades
        return (*lines, (0.5 * (1 + self._value(last - 1)), 0.0, last + 0.5))

    def _table(self) -> Tensor:
        """Makes a word for each sign and exponent, which leads from a number's bits to its line; slopes and offsets of
        the lines to codes, in pairs, first of positive numbers: offsets are such that the nearest whole number above
        ``zero`` is the code; and those to values, by sign and exponent of k."""
        starts = torch.tensor([start for start, _, _ in self.lines[1:]]).view(torch.int32).tolist()
        table = torch.zeros(TABLE_WORDS, dtype=torch.int64)
        below = self.below
        for octave in range(OCTAVES):
            least, beyond = (octave % 256) << 23, (octave % 256 + 1) << 23
            border = next((start for start in starts if least < start < beyond), beyond)
            number = sum(start <= least for start in starts) + (octave // 256) * len(self.lines)
            table[octave] = ((number - octave) << 23) + beyond - border
        forth = [(slope, offset - below) for _, slope, offset in self.lines]
        forth += [(-slope, offset) for slope, offset in forth[:-1]] + [(0.0, forth[-1][1] - 1)]
        for number, pair in enumerate(forth):
            table[LINES_AT + 2 * number : LINES_AT + 2 * number + 2] = torch.tensor(pair).view(torch.int32)
        last = self.cells * 2**self.decades
        for k in (1, *(self.cells * 2**decade for decade in range(self.decades)), last):
            sign_bit, exponent = 256, 126 + k.bit_length()
            _, slope, offset = self.lines[k.bit_length() - self.cells.bit_length() + 1]
            pair = (0.0, 1.0) if k == last else (1 / slope, (0.5 - offset) / slope) if k >= self.cells else (0.0, 0.0)
            for at, sign in ((VALUES_AT + 2 * exponent, 1), (VALUES_AT + 2 * (exponent + sign_bit), -1)):
                table[at : at + 2] = torch.tensor((pair[0], sign * pair[1])).view(torch.int32)
        return (table % 2**32).to(torch.uint32).view(torch.int32)

    @property
    def below(self) -> float:
        """Returns what a line is above the code's distance from ``zero``, where half a code is rounded up."""
        return 0.5 if self.signed else 1.5

    def guess(self, x: Tensor) -> Tensor:
        """Returns the codes of float32 ``x`` along the straight lines, as float32: the nearest or, beside a border, its
        neighbour."""
        y = x.abs() if self.signed else x
        slopes, offsets = torch.zeros_like(y), torch.zeros_like(y)
        for start, slope, offset in self.lines:
            slopes[y >= start], offsets[y >= start] = slope, offset
        k = torch.minimum(slopes * y + offsets, offsets * BELOW_TWICE).floor()
        return (torch.copysign(k, x) + self.zero if self.signed else k - 1).clamp(0, 2**self.bits - 1)

    def encode(self, x: Tensor) -> Tensor:
        """Returns the codes of the values nearest to float32 ``x`` in [-1, 1], or in [0, 1] where the map is unsigned:
        uint8, of its shape. Where two are equally far, the lower."""
        x, shape = x.reshape(-1), x.shape
        borders = self._borders.to(x.device)
        word = (x.view(torch.int32) >> 16).bitwise_and_(0xFFFF)
        guess = self._guesses.to(x.device).index_select(0, word)
        up, down = x > borders[1:].index_select(0, guess), x <= borders.index_select(0, guess)
        return guess.add_(up).sub_(down.int()).to(torch.uint8).view(shape)

    def decode(self, codes: Tensor) -> Tensor:
        """Returns what uint8 ``codes`` stand for: float32, of their shape."""
        return self.values.to(codes.device).index_select(0, codes.reshape(-1).int()).view(codes.shape)


def _rounded_down(x: Tensor) -> Tensor:
    """Returns the largest float32 that is not above each float64 ``x``: what is above the one is above the other."""
    nearest = x.float()
    return torch.where(nearest.double() > x, nearest.nextafter(torch.tensor(-math.inf)), nearest)
