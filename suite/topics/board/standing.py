"""Tells which evidence stands on the board: that of today's version of a baseline, verified by today's code.

All else stands on a technique's own page, under *history*. Where code that everything rests on has changed, less than
half of a kind of evidence is verified, and the board would tell of that change alone: then all of that kind that is of
today's version stands, and the board says so in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from suite.entries.card import Card
from suite.judge.metrics import METRICS, MetricKind, MetricValue, unavailable
from suite.judge.rows import Row
from suite.record.paper_scale import Beside
from suite.topics.board.report import Report

NEEDS: Mapping[MetricKind, tuple[str, ...]] = {
    "counted": ("counted",),
    "learned": ("learned",),
    "timed": ("timed",),
    "measured": ("timed",),
    "composed": ("learned", "timed"),
}
"""The kinds of evidence that a metric rests on."""
SPOKEN: Mapping[str, str] = {
    "counted": "counts",
    "learned": "curves",
    "timed": "timings",
    "paper": "counts at the papers' sizes",
    "models": "trials on other models",
}
STALE = "of older code: leantrain run verifies it"
Place = tuple[str, str, str, str]
"""Recipe, size, model and machine."""


@dataclass(frozen=True)
class Standing:
    """Holds the rows that stand on the board and how they are read; ``lenient``: the kinds of evidence of which most is
    of older code, so that all of it stands."""

    rows: Sequence[Row] = ()
    lenient: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)

    @classmethod
    def of(cls, report: Report) -> Standing:
        rows = _of_first_place(report.rows)
        lenient = {
            kind
            for kind in ("counted", "learned", "timed")
            if _mostly_old(kind in row.unverified for row in rows if _has(row, kind))
        }
        beside = [pair for pairs in report.paper_scale.counts.beside().values() for pair in pairs]
        lenient |= {"paper"} if _mostly_old(map(report.paper_scale.has_changed, beside)) else set()
        if report.models and _mostly_old(name in report.models.changed for name in report.models.matrix.cells):
            lenient |= {"models"}
        return cls(rows, frozenset(lenient), report)

    def value(self, row: Row, metric: str) -> MetricValue:
        """Returns a row's value where all that it rests on is verified; else none."""
        old = {*row.unverified} & {*NEEDS[METRICS[metric].kind]} - self.lenient
        return unavailable(STALE) if old else row.value(metric)

    def has(self, pair: Beside) -> bool:
        """Tells whether a count at a paper's size stands."""
        return "paper" in self.lenient or not self.report.paper_scale.has_changed(pair)

    @property
    def place(self) -> str:
        """Says where the rows were measured, for example ``nano models, modern recipe, on amd-epyc``."""
        if not self.rows:
            return ""
        recipe, size, model, _ = place_of(self.rows[0])
        return f"{model or size} models, {recipe} recipe, on {self.rows[0].machine.name}"

    @property
    def models(self) -> str:
        """Says which models were trained, for example ``on nano models``."""
        return f"on {place_of(self.rows[0])[2] or place_of(self.rows[0])[1]} models" if self.rows else ""

    @property
    def sentence(self) -> str:
        """Says of which kinds most is of older code; empty where of none."""
        if not self.rows and self.report.rows:
            return "No row is of today's version of its baseline: older ones stand on their techniques' pages."
        kinds = [words for kind, words in SPOKEN.items() if kind in self.lenient]
        if not kinds:
            return ""
        return f"Code changed since most {_and(kinds)} were made; until make evidence verifies them, all are shown."

    @property
    def cards(self) -> Mapping[str, Card]:
        return self.report.cards


def place_of(row: Row) -> Place:
    """Returns what a reader chooses."""
    at = row.conditions
    return at.recipe, at.size, at.model or "", row.machine.key


def _of_first_place(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of today's versions of one recipe, size, model and machine: those of the most curves."""
    places: dict[Place, list[Row]] = {}
    for row in rows:
        if not row.newer_version:
            places.setdefault(place_of(row), []).append(row)

    def worth(place: Place) -> tuple[int, int, bool, Place]:
        of = places[place]
        learned, timed = (sum(_has(row, kind) for row in of) for kind in ("learned", "timed"))
        return learned + timed, learned, place[0] == "modern", place

    return places[max(places, key=worth)] if places else []


def _and(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _has(row: Row, kind: str) -> bool:
    known = row.known
    return bool({"counted": all(known.counted), "learned": known.learned, "timed": known.timed}[kind])


def _mostly_old(old: Iterable[bool]) -> bool:
    """Tells whether more than half of some are old."""
    every = list(old)
    return 2 * sum(every) > len(every)
