"""Studies: techniques that are questions over many runs (a batch-size sweep, a fit, a budget scan) or over none.

A ``study.py`` beside the technique defines ``study(lab) -> list[Table]`` and, where people would rather look than read,
``plot(tables) -> matplotlib Figure``. Runs go through the same contenders and records as everything else:
what is stored already is not measured again.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.baseline import RecipeName
from suite.campaign import measure
from suite.catalogue import Entry
from suite.comparison import Progress, canonical
from suite.plan import Pair, Setting, pairs_of, seeds_done
from suite.records import Contender, Record, Store


@dataclass(frozen=True)
class Table:
    """A named table of a study; ``note`` says how to read it."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""

    def as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Lab:
    """Where a study gets its runs from."""

    baseline: str
    recipe: RecipeName
    setting: Setting
    folder: Path
    seeds: int
    minutes: float
    progress: Progress = lambda share, what: None
    warn: Callable[[str], None] = lambda text: None

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[Contender, Contender]]]:
        """(reference, contender) of every seed for each stack, measured where they are missing and time allows."""
        names = [canonical(stack) for stack in stacks]
        pairs = pairs_of(names, [self.baseline], [self.recipe])
        measure(
            pairs, self.setting, self.folder, seeds=self.seeds, minutes=self.minutes,
            progress=self.progress, warn=self.warn,
        )  # fmt: skip
        records, _ = Store(self.folder).read()
        done = seeds_done(pairs, self.setting, records)
        return {pair.stack: list(self._results(pair, done[pair], records).values()) for pair in pairs}

    def _results(
        self, pair: Pair, seeds: set[int], records: Sequence[Record]
    ) -> dict[int, tuple[Contender, Contender]]:
        return {
            record.seed: (record.reference, each)
            for record in records
            if record.seed in seeds and seeds_done([pair], self.setting, [record])[pair]
            for each in record.contenders[1:]
            if each.stack == pair.stack
        }


def study_of(entry: Entry) -> ModuleType:
    """The entry's study module. Raises ValueError if it has none."""
    name = entry.module.removesuffix("technique") + "study"
    if find_spec(name) is None:
        raise ValueError(f"{entry.id} has no study; measure it with: leantrain run -t {entry.id}")
    return importlib.import_module(name)
