"""Compares what others measured of a technique itself with the model of the same setting: agreement or not, in words.

A card says which published rows are of its technique, and what their technique column would say without it. Two rows
that differ in nothing else have a measured ratio; where both are expressed, a modelled one by constants of the other
sources, a ratio of FLOPs and one of peaks, both counted. ``ratios.csv`` has all of them, as the study of published
steps left them (``research/published_steps``). Imports no torch.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from suite.entries.card import MeasuredByOthers
from suite.record.files import read_plain
from suite.topics.modelled_time.modelled import believed

PATH = Path(__file__).with_name("ratios.csv")
AGREES, DISAGREES = "agrees within the model's error", "disagrees beyond the model's error"


@dataclass(frozen=True)
class RatioByOthers:
    """Compares a published row with another of its set-up.

    Attributes:
        table, line: where the row stands; ``source`` is the table's own, a repository's file at a commit.
        technique, against: what the technique columns of the row and of the other one say.
        setting, gpus: of both, in words.
        measured: of the steps' times; modelled: of the same, None where it is not, for the reason ``why_not``.
        change: what the two steps differ in, which says how far the modelled ratio is believed; empty without one.
        flops, peak: counted, stack over reference; ``measured_peak``: published. None where there are none.
    """

    table: str
    line: int
    source: str
    technique: str
    against: str
    setting: str
    gpus: str
    measured: float
    modelled: float | None = None
    change: str = ""
    flops: float | None = None
    peak: float | None = None
    measured_peak: float | None = None
    why_not: str = ""

    @property
    def half_width(self) -> float:
        """Returns the band's half width: 0.2 says that the modelled ratio is believed from a factor of 1/1.2 to one of
        1.2; infinite where nothing is believed."""
        band = believed().band(self.change)
        return band.half_width if band else math.inf

    @property
    def verdict(self) -> str:
        """Tells agreement or not, in words."""
        if self.modelled is None:
            return f"not modelled: {self.why_not}"
        return AGREES if self.inside else f"{DISAGREES} (±{self.half_width:.0%})"

    @property
    def inside(self) -> bool:
        width = 1 + self.half_width
        return self.modelled is not None and self.modelled / width <= self.measured <= self.modelled * width


def written(ratios: Iterable[RatioByOthers]) -> str:
    """Writes the ratios as CSV, numbers with eight digits."""
    text = io.StringIO()
    out = csv.DictWriter(text, [field.name for field in fields(RatioByOthers)], lineterminator="\n")
    out.writeheader()
    for ratio in ratios:
        out.writerow({name: f"{cell:.8g}" if isinstance(cell, float) else cell for name, cell in asdict(ratio).items()})
    return text.getvalue()


WORDS = ("table", "source", "technique", "against", "setting", "gpus", "change", "why_not")
NUMBERS = ("modelled", "flops", "peak", "measured_peak")


@cache
def published_ratios() -> Sequence[RatioByOthers]:
    """Reads the ratios that ship with the package."""
    ratios = []
    for line in csv.DictReader(io.StringIO(read_plain(PATH).decode())):
        values: dict[str, Any] = {name: line[name] for name in WORDS}
        values |= {name: float(line[name]) if line[name] else None for name in NUMBERS}
        ratios.append(RatioByOthers(**values, line=int(line["line"]), measured=float(line["measured"])))
    return ratios


def ratios_by_others(of: MeasuredByOthers) -> list[RatioByOthers]:
    """Returns the ratios of every row that the card's line is of, and whose partner was published, too."""
    return [
        ratio
        for ratio in published_ratios()
        if ratio.table == of.table and of.technique in ratio.technique
        if ratio.against == ratio.technique.replace(of.technique, of.against, 1)
    ]


@dataclass(frozen=True)
class OthersLine:
    """Sums up all ratios of one line of a card: medians of what is known, and how many settings the model agrees
    with."""

    of: MeasuredByOthers
    ratios: Sequence[RatioByOthers]

    @property
    def modelled(self) -> list[RatioByOthers]:
        return [ratio for ratio in self.ratios if ratio.modelled is not None]

    @property
    def verdict(self) -> str:
        """Tells agreement or not, in words; of several settings of most."""
        others = next((ratio.verdict for ratio in self.ratios if ratio.modelled is None), "")
        if not self.modelled:
            return others
        inside = sum(ratio.inside for ratio in self.modelled)
        words = AGREES if 2 * inside > len(self.modelled) else DISAGREES
        said = f"{words} in {inside if words == AGREES else len(self.modelled) - inside} of {len(self.modelled)}"
        return f"{said}; {len(self.ratios) - len(self.modelled)} {others}" if others else said


def lines_by_others(of: Iterable[MeasuredByOthers]) -> list[OthersLine]:
    """Returns a line for each of a card's that has rows."""
    lines = [OthersLine(line, ratios_by_others(line)) for line in of]
    return [line for line in lines if line.ratios]
