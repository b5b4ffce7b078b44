"""Reads the published results of quality: ``quality.csv``, one row a comparison of a technique with its reference."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Scale = Literal["transformer", "other", "small", "words"]
"""``transformer``: of 10 million parameters and more. ``other``: no Transformer. ``small``: of fewer parameters.
``words``: a bound or a sentence without a pair of numbers."""

Unit = Literal["", "tokens", "steps", "samples", "epochs", "computation", "time", "time per step bought back"]
"""What an equivalent budget counts. Budgets of two units are not comparable."""

SCALES: Mapping[Scale, str] = {
    "transformer": "Transformers of 10 million parameters and more",
    "small": "models of fewer than 10 million parameters",
    "other": "models that are no Transformers",
    "words": "a bound or a sentence",
}
"""In words, in the order in which a page shows them."""


@dataclass(frozen=True)
class PublishedQuality:
    """Holds one published comparison.

    Attributes:
        table: the source's name; ``source`` is its file at a commit, or its table in a paper.
        variant, reference: the two sides, in words.
        parameters: of the model; None where the source does not say.
        budget: how long both trained, in words; ``unfinished``: why a side has no number.
        value, value_reference: in the metric's own unit, of which ``better`` names the good direction.
        seeds, sd: number and standard deviation of the technique's runs, and of the reference's; None if unsaid.
        half_width: how far off one value may be by what the source or its reading says, without seeds; else None.
        tuned: whether both sides were tuned by one rule.
        budget_ratio: as published: the reference's budget for the technique's result over the technique's own, in
            ``unit``; above 1 is better. None where the source has none; ``at_least``: it is a lower bound.
        time_ratio: seconds, technique over reference.
        authors: whether the technique's own authors measured it.
    """

    table: str
    technique: str
    variant: str
    reference: str
    model: str
    parameters: float | None
    scale: Scale
    budget: str
    batch: str
    data: str
    hardware: str
    metric: str
    better: Literal["higher", "lower"]
    value: float | None
    value_reference: float | None
    unfinished: str
    seeds: int | None
    seeds_reference: int | None
    sd: float | None
    sd_reference: float | None
    half_width: float | None
    uncertainty: str
    tuned: Literal["yes", "no", "same recipe", "unknown"]
    tuned_note: str
    budget_ratio: float | None
    at_least: bool
    unit: Unit
    how: str
    time_ratio: float | None
    authors: bool
    source: str
    licence: str
    note: str


_FLOATS = ("parameters", "value", "value_reference", "sd", "sd_reference", "half_width", "budget_ratio", "time_ratio")
_INTEGERS = ("seeds", "seeds_reference")


@cache
def quality_rows() -> tuple[PublishedQuality, ...]:
    """Returns all rows, in the file's order."""
    text = files(__package__).joinpath("quality.csv").read_text("utf-8")
    return tuple(map(_row, csv.DictReader(text.splitlines())))


def _row(line: Mapping[str, str]) -> PublishedQuality:
    values: dict[str, object] = dict(line)
    values |= {name: float(line[name]) if line[name] else None for name in _FLOATS}
    values |= {name: int(line[name]) if line[name] else None for name in _INTEGERS}
    values |= {name: line[name] == "yes" for name in ("authors", "at_least")}
    return PublishedQuality(**values)  # type: ignore[arg-type]  # a test reads each row against its annotations


@cache
def quality_by_technique() -> Mapping[str, Sequence[PublishedQuality]]:
    """Returns the rows by the id of their technique."""
    rows: dict[str, list[PublishedQuality]] = defaultdict(list)
    for row in quality_rows():
        rows[row.technique].append(row)
    return rows
