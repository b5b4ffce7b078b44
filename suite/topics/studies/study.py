"""Runs studies: techniques that are questions over many runs (a batch-size sweep, a fit, a budget scan) or over none.

A study that several techniques share is a module of :mod:`suite.topics.studies`, and a card says which part the
technique takes in it. A study of its own is a ``study.py`` beside the technique, which defines ``study(lab) ->
list[Table]`` and, where people would rather look than read, ``plot(tables) -> matplotlib Figure``; ``BASELINES`` where
it is not for all that the card names. Its tables are stored beside the machine's records, for the boards.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from suite.entries.catalogue import Entry
from suite.entries.sources import code_of
from suite.judge.study_tables import Study as Study
from suite.judge.study_tables import path_of
from suite.judge.study_tables import read_studies as read_studies
from suite.record.files import write_json
from suite.record.machine import fingerprint
from suite.topics.studies import batch_sweep, label_noise, link_sweep, rate_grid
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARED: dict[str, ModuleType] = {
    "batch_sweep": batch_sweep,
    "label_noise": label_noise,
    "link_sweep": link_sweep,
    "rate_grid": rate_grid,
}


class CardStudy:
    """Runs the study that an entry's card names; and then its own study.py where it has one, which plots the tables of
    both.

    Has what a study.py has: ``study``, ``plot`` and ``BASELINES``.
    """

    def __init__(self, entry: Entry, own: ModuleType | None) -> None:
        asked = entry.card.study
        assert asked is not None
        self.asked, self.own = asked, own
        self.shared = SHARED[asked.name]
        self.BASELINES = asked.baselines or entry.card.baselines

    def study(self, lab: Lab) -> list[StudyTable]:
        tables: list[StudyTable] = self.shared.study(lab, self.asked)
        return [*tables, *self.own.study(lab)] if self.own else tables

    def plot(self, tables: Sequence[StudyTable]) -> Figure:
        return (self.own or self.shared).plot(tables)


def study_of(entry: Entry) -> CardStudy | ModuleType:
    """Returns the entry's study. Raises ValueError if it has none."""
    name = entry.module.removesuffix("technique") + "study"
    own = importlib.import_module(name) if find_spec(name) else None
    if entry.card.study:
        return CardStudy(entry, own)
    if own is None:
        raise ValueError(f"{entry.id} has no study; measure it with: leantrain run -t {entry.id}")
    return own


def baseline_for(entry: Entry, study: CardStudy | ModuleType, wanted: str | None) -> str:
    """Returns ``wanted``, or else gpt if the study is for it, or the first that it is for: the study's ``BASELINES``
    or, where it has none, the card's. Raises ValueError for a baseline that it is not for."""
    known: Sequence[str] = getattr(study, "BASELINES", entry.card.baselines)
    if wanted and wanted not in known:
        raise ValueError(f"the study of {entry.id} is not for {wanted}, but for: {', '.join(known)}")
    return wanted or ("gpt" if "gpt" in known else known[0])


# the stored results -------------------------------------------------------------------------------------------------


def stored_form(lab: Lab, entry: Entry, tables: Sequence[StudyTable]) -> Study:
    """Returns the tables of ``entry``'s study in ``lab``, with what they were made with. Raises ValueError for a bad
    cell."""
    at = lab.setting
    return Study(
        technique=entry.id,
        code=code_of(at, entry.id).trajectory,
        baseline=at.baseline,
        size=at.size,
        recipe=at.recipe,
        device=at.device,
        seeds=lab.seeds,
        machine=fingerprint(at.device, at.threads),
        made=datetime.now(UTC),
        tables=list(tables),
    )


def write_study(study: Study, records: Path) -> Path | None:
    """Writes the study, whole or not at all, into the results folder and returns its path.

    Writes nothing and returns None where all tables are empty.
    """
    if not any(table.rows for table in study.tables):
        return None
    path = path_of(study, records)
    write_json(study, path)
    return path
