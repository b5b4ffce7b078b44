"""Says in a word whether a technique helps: the one rule of the board, its front page, the badge and the findings.

A technique *sells* something (less memory, fewer FLOPs, a sooner end, ...) and takes a *price* in quality. Both are
gains, ranges above 1 where they are good:

    what it sells     quality            word
    unknown           whatever           not known: why
    surely less       whatever           costs
    no change         surely worse       costs
    no change         otherwise          no difference (±x %); not known where x is above 30
    surely more       unknown            not known: why
    surely more       surely worse       costs
    surely more       otherwise          helps

An exact gain is sure from 5 % on, an interval where it excludes 1. What a technique learned says nothing while its
rate is not settled, or where its mechanism never acted: :func:`withheld`, by which claims are judged, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from suite.judge.metrics import MetricValue
from suite.judge.rows import Row
from suite.judge.verdicts import NOT_EXERCISED

HelpsWord = Literal["helps", "costs", "no difference", "not known"]
WORDS: tuple[HelpsWord, ...] = get_args(HelpsWord)
WORTH_A_WORD = 0.05
"""An exact count that changes by less is no difference."""
BLIND = 0.30
"""Where so large a change would not have shown, that none was seen says nothing."""


@dataclass(frozen=True)
class Gain:
    """Holds the range in which a gain lies, above 1 where it is good; without one, ``why`` it is not known.

    ``exact``: no noise; ``number`` is its best estimate, nan where there is only a bound. ``control``: both sides did
    the same, so that what was seen is chance.
    """

    low: float = math.nan
    high: float = math.nan
    number: float = math.nan
    exact: bool = False
    control: bool = False
    why: str = ""

    @property
    def known(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def sure(self) -> int:
        """Returns 1 where it is surely a gain, -1 where it is surely a loss, else 0."""
        if not self.known or self.control:
            return 0
        worth = WORTH_A_WORD if self.exact else 0.0
        return (self.low > 1 + worth) - (self.high < 1 / (1 + worth))

    @property
    def half_width(self) -> float:
        """Returns how far from 1 the gain may lie."""
        return max(self.high - 1, 1 - self.low, 0.0)


@dataclass(frozen=True)
class Helps:
    """Holds a verdict: its word and, of the last two words, how little could have hidden, or why."""

    word: HelpsWord
    detail: str = ""

    @property
    def brief(self) -> str:
        """Returns the word with the first clause of its detail, as a cell says it."""
        return self._said(re.split(r"[:;]|, and ", self.detail)[0])

    def __str__(self) -> str:
        return self._said(self.detail)

    def _said(self, detail: str) -> str:
        if not detail:
            return self.word
        return f"{self.word} ({detail})" if self.word == "no difference" else f"{self.word}: {detail}"


def helps(sold: Gain, quality: Gain) -> Helps:
    """Tells whether what is sold is worth its price in quality, by the rules at the head of this module."""
    if not sold.known:
        return Helps("not known", sold.why)
    if sold.sure < 0 or quality.sure < 0:
        return Helps("costs")
    if sold.sure > 0:
        return Helps("helps") if quality.known else Helps("not known", quality.why)
    if sold.half_width > BLIND and not sold.control:
        return Helps("not known", f"within ±{100 * sold.half_width:.0f} %")
    return Helps("no difference", "the same" if sold.control else f"±{math.ceil(100 * sold.half_width - 1e-9):d} %")


def withheld(row: Row) -> str:
    """Tells why what the row learned says nothing of its technique; empty where it does."""
    if row.inactive:
        return NOT_EXERCISED
    return untuned(row) if row.to_tune else ""


def untuned(row: Row) -> str:
    """Tells why the row says as much of the learning rate as of the technique; empty where rates are settled."""
    if row.tuned is None:
        return "learning rates were not tuned"
    return "the search for the rates has not bracketed the best" if row.tuning_open else ""


def gain_of(value: MetricValue) -> Gain:
    """Returns the gain of a cost ratio: its inverse; of a bound the side that is known."""
    if value.kind == "exact" and value.number > 0:
        gain = 1 / value.number
        return Gain(gain, gain, gain, exact=True)
    if value.kind == "missed":
        return Gain(0.0, 0.0, 0.0)
    if value.kind == "bound" and value.number > 0:
        gain = 1 / value.number
        return Gain(gain, math.inf) if value.at_most else Gain(0.0, gain)
    interval = value.speedup if value.kind == "measured" else None
    if interval is None or not math.isfinite(interval.half_width):
        return Gain(why=value.reason or "no interval: it was measured once")
    return Gain(interval.low, interval.high, interval.estimate, control=value.control)


def mean_gain(gains: Sequence[Gain]) -> Gain:
    """Returns the geometric mean of independent gains; the half-width of its logarithm is the root of the sum of
    squares over their number. Where one is a bound, so is the mean, if all bounds lie on one side."""
    known = [gain for gain in gains if gain.known]
    if not known:
        return gains[0] if gains else Gain(why="not measured")
    if len(known) == 1 or all(gain.control for gain in known):
        return known[0]
    if any(gain.high == 0 for gain in known):
        return Gain(0.0, 0.0, 0.0)
    if any(gain.low == 0 or math.isinf(gain.high) for gain in known):
        low, high = (_mean(end) for end in ([gain.low for gain in known], [gain.high for gain in known]))
        return (
            Gain(low, high) if low > 0 or high < math.inf else Gain(why="its losses lie beyond both ends of the curve")
        )
    logs = [(math.log(gain.low), math.log(gain.number), math.log(gain.high)) for gain in known]
    middle = sum(log for _, log, _ in logs) / len(logs)
    half = math.hypot(*((high - low) / 2 for low, _, high in logs)) / len(logs)
    return Gain(math.exp(middle - half), math.exp(middle + half), math.exp(middle), all(gain.exact for gain in known))


def _mean(ends: Iterable[float]) -> float:
    """Returns the geometric mean; 0 where one is 0, infinite where one is."""
    values = list(ends)
    if 0 in values:
        return 0.0
    return math.inf if math.inf in values else math.exp(sum(map(math.log, values)) / len(values))
