"""Keeps a study's answer as it is stored beside a machine's records: named tables. Reading one loads no torch.

What makes them is :mod:`suite.topics.studies.study`.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict

from suite.entries.sources import CodeOf, installed_code
from suite.record.files import OlderSchema, Stored, parse_versioned, printable, read_plain
from suite.record.job import Setting
from suite.record.schema import Machine
from suite.record.text import in_csv

SCHEMA_VERSION = 2
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # JSON has no such numbers; Stored writes them as these words


def _scalar(cell: Any) -> Any:
    """Returns a JSON scalar, of NumPy's and torch's too. Raises ValueError for anything else."""
    cell = cell.item() if hasattr(cell, "item") else cell
    if not isinstance(cell, bool | int | float | str | None):
        raise ValueError("a cell is a number, a text, a truth value or None")
    return float(cell) if cell in NOT_FINITE else cell


Cell = Annotated[Any, AfterValidator(_scalar)]


@dataclass(frozen=True)
class StudyTable:
    """Holds a named table of a study; ``note`` says how to read it. Raises ValueError for a row that does not fit."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of the table {self.name} has not one cell for each column")

    def as_text(self) -> list[list[str]]:
        """Returns the cells of every row as people read them: four digits of a float, n/a for None."""
        return [
            ["n/a" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in self.rows
        ]

    def as_csv(self) -> str:
        """Returns CSV, in which a text that a spreadsheet would take for a formula begins with an apostrophe."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180; and with "\n" alone, a "\r" would end a line
        writer.writerows(
            [in_csv(cell) if isinstance(cell, str) else cell for cell in row] for row in (self.columns, *self.rows)
        )
        return text.getvalue()


class Study(Stored):
    """Holds a study's tables, and what they were made with; ``seeds`` is what each run got at most.

    ``code``: the trajectory hash of the technique alone on the baseline (:func:`suite.entries.sources.code_of`).
    """

    model_config = ConfigDict(revalidate_instances="always")

    schema_version: int = SCHEMA_VERSION
    technique: str
    code: str
    baseline: str
    size: str
    recipe: str
    device: str
    seeds: int
    machine: Machine
    made: datetime
    tables: list[StudyTable]

    def unverified(self, code_of: CodeOf = installed_code) -> bool:
        """Tells whether the code that its runs load has changed since, or is not installed."""
        now = code_of(Setting(baseline=self.baseline, device=self.device), self.technique)
        return now is None or now.trajectory != self.code


def path_of(study: Study, records: Path) -> Path:
    """Returns the path where a results folder has it."""
    name = f"{study.technique}-{study.baseline}-{study.size}-{study.recipe}.json"
    return records / study.machine.name / "studies" / name


def read_studies(records: Path) -> tuple[list[Study], list[str]]:
    """Returns the studies in a results folder, and one sentence for each file that cannot be read."""
    studies, problems = [], []
    for path in sorted(records.glob("*/studies/*.json")):
        try:
            studies.append(parse_versioned(read_plain(path), Study, SCHEMA_VERSION, oldest=SCHEMA_VERSION))
        except OlderSchema as error:
            again = f"leantrain study {path.name.partition('-')[0]}"
            problems.append(printable(f"{path}: {error}; delete the file and make it again with: {again}"))
        except (OSError, ValueError) as error:
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
            problems.append(f"{printable(str(path))}: {why}; it is left out and left in place")
    return studies, problems
