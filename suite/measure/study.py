"""Studies: techniques that are questions over many runs (a batch-size sweep, a fit, a budget scan) or over none.

A ``study.py`` beside the technique defines ``study(lab) -> list[Table]`` and, where people would rather look than read,
``plot(tables) -> matplotlib Figure``; ``BASELINES`` where it is not for all that the card names. Runs go through the
same contenders and records as everything else: what is stored already is not measured again. What a study found is kept
beside the machine's records, for the boards.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict

from suite.contract.catalogue import Entry
from suite.contract.sources import Sources, current_sources
from suite.measure.campaign import measure
from suite.measure.comparison import Progress, silent
from suite.measure.plan import Pair, pairs_of, seeds_done
from suite.record.files import Stored, parse_versioned, printable, write_json
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import Machine, Outcome, Record
from suite.record.store import Store

SCHEMA_VERSION = 1
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
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Lab:
    """Where a study gets its runs from."""

    setting: Setting
    folder: Path
    seeds: int
    minutes: float
    progress: Progress = silent
    warn: Callable[[str], None] = lambda text: None

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[Outcome, Outcome]]]:
        """(reference, contender) of every seed for each stack, measured where they are missing and time allows."""
        at = self.setting
        pairs = pairs_of(stacks, [at.baseline], [at.recipe], at)
        measure(pairs, self.folder, seeds=self.seeds, minutes=self.minutes, progress=self.progress, warn=self.warn)
        records, _ = Store(self.folder).read()
        done = seeds_done(pairs, records)
        return {pair.stack: list(_outcomes(pair, done[pair], records).values()) for pair in pairs}


def _outcomes(pair: Pair, seeds: set[int], records: Sequence[Record]) -> dict[int, tuple[Outcome, Outcome]]:
    return {
        record.seed: (record.reference, each)
        for record in records
        if record.seed in seeds and seeds_done([pair], [record])[pair]
        for each in record.contenders[1:]
        if each.stack == pair.stack
    }


def study_of(entry: Entry) -> ModuleType:
    """The entry's study module. Raises ValueError if it has none."""
    name = entry.module.removesuffix("technique") + "study"
    if find_spec(name) is None:
        raise ValueError(f"{entry.id} has no study; measure it with: leantrain run -t {entry.id}")
    return importlib.import_module(name)


def baseline_for(entry: Entry, module: ModuleType, wanted: str | None) -> str:
    """``wanted``, or else gpt if the study is for it, or the first that it is for: the module's ``BASELINES`` or, where
    it has none, the card's. Raises ValueError for a baseline that it is not for."""
    known: Sequence[str] = getattr(module, "BASELINES", entry.card.baselines)
    if wanted and wanted not in known:
        raise ValueError(f"the study of {entry.id} is not for {wanted}, but for: {', '.join(known)}")
    return wanted or ("gpt" if "gpt" in known else known[0])


# what a study found -------------------------------------------------------------------------------------------------


class Study(Stored):
    """A study's tables, and what they were made with; ``seeds`` is what each run got at most."""

    model_config = ConfigDict(revalidate_instances="always")

    schema_version: int = SCHEMA_VERSION
    technique: str
    source_sha256: str
    harness_sha256: str
    baseline_sha256: str
    baseline: str
    size: str
    recipe: str
    seeds: int
    machine: Machine
    made: datetime
    tables: list[Table]

    def stale(self, current: Sources) -> tuple[str, ...]:
        """What changed since; empty where nothing did."""
        return current.changes(
            Sources(self.harness_sha256, {self.baseline: self.baseline_sha256}, {self.technique: self.source_sha256})
        )


def found(lab: Lab, entry: Entry, tables: Sequence[Table]) -> Study:
    """The tables that ``entry``'s study made in ``lab``, as they are kept. Raises ValueError for a bad cell."""
    at, sources = lab.setting, current_sources()
    return Study(
        technique=entry.id, source_sha256=entry.source_sha256, harness_sha256=sources.harness_sha256,
        baseline_sha256=sources.baselines[at.baseline], baseline=at.baseline, size=at.size, recipe=at.recipe,
        seeds=lab.seeds, machine=fingerprint(at.device, at.threads), made=datetime.now(UTC), tables=list(tables),
    )  # fmt: skip


def keep(study: Study, records: Path) -> Path | None:
    """Writes it, whole or not at all, into the results folder; None, and nothing, where all its tables are empty."""
    if not any(table.rows for table in study.tables):
        return None
    name = f"{study.technique}-{study.baseline}-{study.size}-{study.recipe}.json"
    path = records / study.machine.name / "studies" / name
    write_json(study, path)
    return path


def kept(records: Path) -> tuple[list[Study], list[str]]:
    """The studies in a results folder, and one sentence for each file that cannot be read."""
    studies, problems = [], []
    for path in sorted(records.glob("*/studies/*.json")):
        try:
            studies.append(parse_versioned(path.read_bytes(), Study, SCHEMA_VERSION))
        except (OSError, ValueError) as error:
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
            problems.append(f"{printable(str(path))}: {why}; it is left out and left in place")
    return studies, problems
