"""Shows the matrix of models for the board: for each baseline a table of techniques and of the models in its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from suite.show.described import Folded, Item, Items, PageTable, Part, Section, Subheading, TableCell, TableRow, slug
from suite.topics.models.tried_models import VERDICTS, ModelsMatrix, Placed, Verdict
from suite.topics.models.tried_models import Cell as ModelCell
from suite.topics.on_board import OnBoard

TITLE = "Models"
SIGNS: dict[Verdict, str] = {"works": "✓", "refused": "–", "inapplicable": "·", "defect": "✗"}
READING = (
    "✓ works: the technique attaches, trains and changes something, and the identities of its card hold; "
    "– it refuses with a sentence; · it does not apply; ✗ a defect; empty: not tried. Models are tiny and randomly "
    "initialised: this says whether a technique runs on an architecture as it should, not whether it helps there. "
    "Every cell with its sentence, to filter: leantrain models --write models.html"
)
NAMES = re.compile(r"\d+|\b\w+(\.\w+)+|\b[A-Z]\w*[A-Z]\w*")
"""Matches what alone differs between the same sentence of two models: numbers, paths, and classes."""


@dataclass(frozen=True)
class Shown:
    """Holds a matrix with cells, and which of these are of older code, as technique and model."""

    matrix: ModelsMatrix
    stale: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def changed(self) -> frozenset[str]:
        """The techniques with a cell of older code."""
        return frozenset(technique for technique, _ in self.stale)

    def is_stale(self, technique: str, model: str) -> bool:
        return (technique, model) in self.stale

    def mark(self, technique: str) -> str:
        return "†" if technique in self.changed else ""


@dataclass(frozen=True)
class ModelTable:
    """Holds the models in one baseline's place: ``rows`` are a technique's cells, None where it was not tried."""

    baseline: str
    models: tuple[str, ...]
    rows: tuple[tuple[str, tuple[ModelCell | None, ...]], ...]


@dataclass(frozen=True)
class Reason:
    """Holds a sentence with which techniques do not work, and where it was said."""

    verdict: Verdict
    words: str
    techniques: tuple[str, ...]
    models: tuple[str, ...]


def tables(matrix: ModelsMatrix) -> Iterator[ModelTable]:
    """Yields the matrix by baseline."""
    for baseline in dict.fromkeys(model.baseline for model in matrix.models.values()):
        names = tuple(name for name, model in matrix.models.items() if model.baseline == baseline)
        rows = tuple((technique, tuple(map(row.get, names))) for technique, row in matrix.cells.items())
        yield ModelTable(baseline, names, rows)


def reasons(matrix: ModelsMatrix) -> list[Reason]:
    """Lists every sentence once, with the first one's numbers and names where they alone differ; defects first."""
    said: dict[tuple[Verdict, str], list[Placed]] = {}
    for placed in matrix.placed():
        if placed.cell.verdict != "works":
            said.setdefault((placed.cell.verdict, NAMES.sub("0", placed.cell.reason)), []).append(placed)
    sentences = [
        Reason(
            verdict,
            where[0].cell.reason,
            tuple(dict.fromkeys(one.technique for one in where)),
            tuple(dict.fromkeys(one.model for one in where)),
        )
        for (verdict, _), where in said.items()
    ]
    return sorted(sentences, key=lambda reason: reason.verdict != "defect")


def sentence(shown: Shown) -> str:
    """Says what was tried, how it ended, with which libraries, and how much of it is of older code."""
    matrix = shown.matrix
    libraries = ", ".join(f"{name} {version}" for name, version in matrix.versions.items())
    old = f" † The code of {len(shown.changed)} techniques changed since: leantrain models" if shown.changed else ""
    return f"{matrix.tally()} (leantrain models, {matrix.made}; {libraries}).{old}"


class CellsEnded(NamedTuple):
    """Counts how a technique's cells ended; ``asked`` are the models that it is about."""

    asked: int
    works: int
    refused: int
    inapplicable: int
    defect: int


def ended(technique: str, shown: Shown) -> CellsEnded:
    """Counts the cells of a technique."""
    of = Counter(cell.verdict for cell in shown.matrix.cells.get(technique, {}).values())
    return CellsEnded(of.total() - of["inapplicable"], *(of[verdict] for verdict in VERDICTS))


def line_of(technique: str, shown: Shown) -> str:
    """Says in a line on how many models a technique works, and how often it does not, and why."""
    of = ended(technique, shown)
    parts = [f"Works on {of.works} of {of.asked} models of other architectures"]
    parts += [f"refuses {of.refused}"] if of.refused else []
    parts += [f"does not apply to {of.inapplicable} more"] if of.inapplicable else []
    parts += [f"is defective on {of.defect}"] if of.defect else []
    old = " Its code changed since." if technique in shown.changed else ""
    return f"{', '.join(parts)} (tiny, randomly initialised; {shown.matrix.made}).{old}"


def listed(names: Sequence[str], of: int, noun: str) -> str:
    """Lists the names, or says how many where they are all or many."""
    if len(names) == of:
        return f"all {of} {noun}"
    return ", ".join(names) if len(names) <= 12 else f"{len(names)} {noun}"


def place(reason: Reason, matrix: ModelsMatrix) -> str:
    """Says which techniques on which models."""
    techniques = listed(reason.techniques, len(matrix.cells), "techniques")
    return f"{techniques} on {listed(reason.models, len(matrix.models), 'models')}"


def section(shown: Shown) -> Section:
    """Shows for each baseline the table of techniques and of the models in its place; then why some do not work."""
    parts: list[Part] = []
    for table in tables(shown.matrix):
        title = f"In the place of {table.baseline}'s model"
        columns: list[TableCell | str] = ["technique", *(TableCell(name, code=True) for name in table.models)]
        lines = [
            TableRow([TableCell(technique, code=True, head=True, mark=shown.mark(technique)), *map(_cell, cells)])
            for technique, cells in table.rows
        ]
        anchor = f"models-{slug(table.baseline)}-title"
        parts += [Subheading(title), PageTable(anchor, title, columns, lines, align="lc")]
    if why := [
        f"{SIGNS[reason.verdict]} {place(reason, shown.matrix)}: {reason.words}" for reason in reasons(shown.matrix)
    ]:
        parts.append(Folded("Why not", [Items(list(map(Item, why)))]))
    return Section("models", TITLE, sentence(shown), parts, READING)


def _cell(cell: ModelCell | None) -> TableCell:
    if cell is None:
        return TableCell("")
    return TableCell(SIGNS[cell.verdict], list(SIGNS).index(cell.verdict))


ON_BOARD = OnBoard(60, lambda report: section(report.models) if report.models else None, "techniques on other models")
