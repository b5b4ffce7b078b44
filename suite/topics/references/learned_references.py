"""Keeps what the references have learned, in one file of a results folder: test scores beside classical methods, what a
model makes of held-out examples, and what each baseline can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from suite.record.files import Stored, write_json
from suite.record.job import BASELINE
from suite.record.placed import read_kept
from suite.record.schema import Code, Conditions

NAME = "references.json"
SCHEMA = 1


class Bar(Stored):
    """Describes a classical method that a reference is held against; ``scores`` by metric."""

    method: str
    scores: dict[str, float]
    passed: bool


class Picture(Stored):
    """Holds something that a model makes of held-out examples: a text, or a picture as PNG in base64."""

    caption: str
    text: str = ""
    png: str = Field(default="", pattern="^[A-Za-z0-9+/]*={0,2}$")
    height: int = 0
    width: int = 0


class OfReference(Stored):
    """Records something known of a baseline's reference; ``made``: the day."""

    conditions: Conditions
    code: Code
    made: date

    @property
    def stack(self) -> str:
        """Returns the reference's stack."""
        return BASELINE


class LearnedReference(OfReference):
    """Records final test scores, seed by seed, and the bars; what the first seed's model makes of test examples.

    Attributes:
        judged_by: the metric that the bars are about.
        quality: what the loss is, in words.
        further: what else the model is worth, means over the seeds.
        why: what kept it from an end.
    """

    judged_by: str
    quality: str
    seeds: list[dict[str, float]]
    bars: list[Bar]
    further: dict[str, float] = Field(default_factory=dict)
    samples: list[Picture] = Field(default_factory=list)
    why: str = ""

    @property
    def scores(self) -> dict[str, float]:
        """Returns the means over the seeds."""
        return means(self.seeds)

    @property
    def passed(self) -> bool:
        """Tells whether it is at least as good as every classical method."""
        return not self.why and all(bar.passed for bar in self.bars)


class Control(Stored):
    """Records a change whose effect is known beforehand, against the reference: the interval of the equivalent budget,
    and the ratio of final losses."""

    name: str
    seeds: int
    equivalent_budget: float
    low: float
    high: float
    loss_ratio: float


class Power(OfReference):
    """Records what a baseline can tell apart.

    Attributes:
        seed_deviation: of ln equivalent budget, of one pair of runs that differ in nothing that matters.
        smallest_change: of the equivalent budget, which ``seeds`` seeds see with 80 % power, as a share.
    """

    seeds: int
    seed_deviation: float
    smallest_change: float
    controls: list[Control]


Kind = TypeVar("Kind", bound=OfReference)


class References(Stored):
    """Holds the newest of each set of conditions."""

    schema_version: int = SCHEMA
    learned: list[LearnedReference] = Field(default_factory=list)
    power: list[Power] = Field(default_factory=list)

    def with_newer(self, learned: Iterable[LearnedReference] = (), power: Iterable[Power] = ()) -> References:
        """Returns these, where ``learned`` and ``power`` take the places of older ones."""
        return References(learned=_newest([*self.learned, *learned]), power=_newest([*self.power, *power]))

    def on(self, baselines: Sequence[str]) -> References:
        """Keeps what is known of some baselines; all where none is named."""
        return References(
            learned=[run for run in self.learned if not baselines or run.conditions.baseline in baselines],
            power=[entry for entry in self.power if not baselines or entry.conditions.baseline in baselines],
        )


def _newest(entries: Iterable[Kind]) -> list[Kind]:
    by_place = {(one.conditions.baseline, one.conditions.family): one for one in entries}
    return [by_place[place] for place in sorted(by_place)]


def means(seeds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Computes the means over the seeds, by name."""
    return {name: sum(seed[name] for seed in seeds) / len(seeds) for name in seeds[0]} if seeds else {}


def read(folder: Path) -> References:
    """Reads what a results folder has; nothing where it has no such file. Raises ValueError where it cannot be read."""
    return read_kept(folder / NAME, References, SCHEMA, "leantrain baselines")


def write(references: References, folder: Path) -> Path:
    """Writes a results folder's file, whole or not at all. Raises OSError."""
    write_json(references, folder / NAME)
    return folder / NAME
