"""A study's laboratory: where it gets its runs from, and the tables that it makes of them.

Runs go through the same campaigns and evidence as everything else: what is stored already is not measured again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from suite.measure.campaign import Effort, measure
from suite.measure.evidence import Progress, silent
from suite.measure.plan import Plan, Wanted, pairs_of
from suite.record.job import Setting
from suite.record.schema import Counted, Learned
from suite.record.store import Store
from suite.record.text import in_csv

NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # JSON has no such numbers; Stored writes them as these words


def _scalar(cell: Any) -> Any:
    """A JSON scalar, of NumPy's and torch's too. Raises ValueError for anything else."""
    cell = cell.item() if hasattr(cell, "item") else cell
    if not isinstance(cell, bool | int | float | str | None):
        raise ValueError("a cell is a number, a text, a truth value or None")
    return float(cell) if cell in NOT_FINITE else cell


Cell = Annotated[Any, AfterValidator(_scalar)]


@dataclass(frozen=True)
class Table:
    """A named table of a study; ``note`` says how to read it. Raises ValueError for a row that does not fit."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of the table {self.name} has not one cell for each column")

    def as_text(self) -> list[list[str]]:
        """The cells of every row as people read them: four digits of a float, n/a for None."""
        return [
            ["n/a" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in self.rows
        ]

    def as_csv(self) -> str:
        """CSV, in which a text that a spreadsheet would take for a formula begins with an apostrophe."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180; and with "\n" alone, a "\r" would end a line
        writer.writerows(
            [in_csv(cell) if isinstance(cell, str) else cell for cell in row] for row in (self.columns, *self.rows)
        )
        return text.getvalue()


@dataclass(frozen=True)
class Lab:
    """The place that a study gets its runs from: a setting, stored records, and a budget for what is missing."""

    setting: Setting
    folder: Path
    seeds: int
    minutes: float
    progress: Progress = silent
    warn: Callable[[str], None] = lambda text: None

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        """(reference, contender) of every seed for each stack, learned where they are missing and time allows."""
        plan = self._measured(stacks)
        return {pair.stack: plan.learned_pairs(pair)[: self.seeds] for pair in plan.pairs}

    def counts(self, stacks: Sequence[str]) -> dict[str, Counted]:
        """The counts of each stack, where it was counted."""
        plan = self._measured(stacks)
        counted = {pair.stack: plan.counted(pair.setting, pair.stack) for pair in plan.pairs}
        return {stack: each for stack, each in counted.items() if each}

    def _measured(self, stacks: Sequence[str]) -> Plan:
        at, wanted = self.setting, Wanted(self.seeds, timings=0, tuned=False)
        pairs = pairs_of(stacks, [at.baseline], [at.recipe], at)
        effort = Effort(wanted, self.minutes)
        measure(pairs, self.folder, effort, progress=self.progress, warn=self.warn)
        return Plan(pairs, Store(self.folder).read()[0], wanted)
