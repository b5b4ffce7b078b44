"""Draws the axes of a plot: round ticks on a linear or a logarithmic scale, titles with units, and places in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from suite.show.pictures.drawing import Line, Mark, Words

MOST_TICKS = 7
MANTISSAS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,))
"""Of logarithmic ticks, from fine to coarse."""


@dataclass(frozen=True)
class Axis:
    """An axis runs from ``low`` to ``high`` in the quantity's own unit; what lies beyond is drawn at the end."""

    title: str
    low: float
    high: float
    logarithmic: bool = True
    ticks: Sequence[float] = ()
    words: Sequence[str] = ()

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Returns the (value, words) of each tick."""
        ticks = self.ticks or (log_ticks if self.logarithmic else even_ticks)(self.low, self.high)
        return list(zip(ticks, self.words or even_words(ticks), strict=True))

    def share(self, value: float) -> float:
        """Returns the place of a value between the ends, 0 to 1."""
        low, length = self._scale
        return min(1.0, max(0.0, (self._scaled(value) - low) / length))

    @cached_property
    def _scale(self) -> tuple[float, float]:
        """Returns where the axis begins, and its length."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return low, (high - low) or 1.0

    def _scaled(self, value: float) -> float:
        if not self.logarithmic:
            return value
        return math.log(value) if value > 0 else -math.inf


@dataclass(frozen=True)
class Frame:
    """Holds two axes in a rectangle of pixels. One without a title or ticks (y of a list) is None."""

    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis | None = None

    def px(self, value: float) -> float:
        return self.left + (self.right - self.left) * self.x.share(value)

    def py(self, value: float) -> float:
        assert self.y is not None
        return self.bottom - (self.bottom - self.top) * self.y.share(value)

    def marks(self, grid: bool = True) -> list[Mark]:
        """Draws grid, axes, ticks and titles."""
        drawn: list[Mark] = []
        for value, words in self.x.marks:
            place = self.px(value)
            drawn += [Line("grid", [(place, self.top), (place, self.bottom)])] if grid else []
            drawn += [Line("axis", [(place, self.bottom), (place, self.bottom + 4)])]
            drawn += [Words(place, self.bottom + 17, words, "middle")]
        middle = (self.left + self.right) / 2
        drawn.append(Words(middle, self.bottom + 35, self.x.title, "middle"))
        if self.y is None:
            return [*drawn, Line("axis", [(self.left, self.bottom), (self.right, self.bottom)])]
        for value, words in self.y.marks:
            place = self.py(value)
            drawn += [Line("grid", [(self.left, place), (self.right, place)])] if grid else []
            drawn += [Line("axis", [(self.left - 4, place), (self.left, place)])]
            drawn += [Words(self.left - 7, place + 4, words, "end")]
        drawn.append(Words(self.left - 52, (self.top + self.bottom) / 2, self.y.title, "middle", upright=True))
        return [
            *drawn,
            Line("axis", [(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)]),
        ]


def around(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """Returns the ends of a logarithmic axis that holds positive values, with a margin on both sides."""
    logs = [math.log(value) for value in values if 0 < value < math.inf]
    low, high = min(logs), max(logs)
    room = max(0.02, margin * (high - low))
    return math.exp(low - room), math.exp(high + room)


def log_ticks(low: float, high: float) -> list[float]:
    """Returns round values between two positive ones: even ones within a factor of two, else of a few mantissas."""
    if high <= 2 * low:
        return even_ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    halves = [2.0**power for power in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1) if low > 0.2]
    series = [[m * 10.0**decade for decade in decades for m in mantissas] for mantissas in MANTISSAS]
    within = [[tick for tick in of if low <= tick <= high] for of in (series[0], halves, *series[1:])]
    return next((ticks for ticks in within if 2 < len(ticks) <= MOST_TICKS), within[-1])


def even_ticks(low: float, high: float) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten between two values, about five."""
    width = high - low
    if not 0 < width < math.inf:
        return [low]
    step = 10 ** math.floor(math.log10(width / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if width / (step * factor) <= MOST_TICKS - 1)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def even_words(ticks: Sequence[float]) -> list[str]:
    """Writes the ticks with as many digits as tell them apart."""
    return [f"{tick:.4g}" for tick in ticks]
