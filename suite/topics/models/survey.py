"""Makes the matrix: every technique on every model, as many models side by side as there are cores.

A baseline's own model comes first. An identity that its short run does not meet needs a longer run or a larger model
than a trial has, so it says nothing of the others; one that it meets must hold on every model in its place. Counted
claims are numbers of one model, and are not asked.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from suite.entries.catalogue import catalogue, lookup, reference_of
from suite.entries.installed import baselines
from suite.entries.together import built
from suite.loop.baseline import Family
from suite.measure.contenders.deputies import in_child
from suite.measure.learning import Cores, cores
from suite.process.child import ContenderFailed
from suite.process.scratch import scratch
from suite.record.job import BASELINE
from suite.record.machine import versions
from suite.topics.models.crew import Crew, TrialPlace
from suite.topics.models.trial import RECIPE, SIZE
from suite.topics.models.tried_models import Cell, Model, ModelsMatrix, code_of_all

OWN = "its own"
RECIPES_S = 60.0  # for the recipes of all techniques, or of one
Progress = Callable[[float, str], None]
Keep = Callable[[ModelsMatrix], None]


@dataclass(frozen=True)
class Task:
    """Names the techniques of ``ranks`` processes on one model; ``family`` None is the baseline's own."""

    model: str
    baseline: str
    family: Family | None
    ranks: int
    techniques: tuple[str, ...]


def models() -> dict[str, tuple[str, Family | None]]:
    """Returns every model of the matrix by name: its baseline, and its family; None is the baseline's own model."""
    own: dict[str, tuple[str, Family | None]] = {name: (name, None) for name in baselines()}
    for name, baseline in baselines().items():
        for family, values in baseline.families().items():
            if family in own:
                raise ValueError(f"two models of the matrix are called {family}: rename the one of {name}")
            own[family] = (name, values)
    return own


def survey(
    techniques: Collection[str] = (),
    on: Collection[str] = (),
    earlier: ModelsMatrix = ModelsMatrix(),  # noqa: B008  it is frozen
    keep: Keep = lambda matrix: None,
    progress: Progress = lambda share, label: None,
) -> ModelsMatrix:
    """Returns the matrix of these techniques on these models, of all where none are named, without what ``earlier``
    knows.

    ``keep`` gets what is there after each model. Raises UnknownId.
    """
    every = models()
    for name in techniques:
        lookup("technique", name, catalogue())
    for name in on:
        lookup("model", name, every)
    chosen = [id for id in catalogue() if not techniques or id in techniques]
    bases = {every[name][0] for name in on or every}
    wanted = {name for name, (baseline, family) in every.items() if baseline in bases and (family is None or not on)}
    wanted |= set(on)
    empty = ModelsMatrix(
        made=datetime.now(UTC).strftime("%Y-%m-%d"),
        versions=versions(),
        models={name: _model(baseline, family) for name, (baseline, family) in every.items()},
        code={technique: code_of_all(technique) for technique in [BASELINE, *chosen]},
    )
    tour = _Tour(empty, earlier.still(empty), keep, progress)
    tour.make([task for name in every if name in wanted for task in tour.tasks(name, *every[name])])
    return tour.matrix().only(empty.code, wanted)


def _model(baseline: str, family: Family | None) -> Model:
    if family is None:
        return Model(baseline=baseline, kind=OWN)
    content = json.dumps(family.config, sort_keys=True)
    kind = str(family.config.get("architecture") or family.config.get("model_type"))
    return Model(baseline=baseline, kind=kind, sha256=hashlib.sha256(content.encode()).hexdigest()[:8])


def _ranks(techniques: Sequence[str], baseline: str) -> dict[str, int]:
    """Returns the processes that each technique takes, asked in a process of its own; 1 where its recipe fails, as its
    trial will tell."""
    try:
        return in_child(_asked_ranks, list(techniques), baseline, limit_s=RECIPES_S)
    except ContenderFailed:
        if len(techniques) <= 1:
            return dict.fromkeys(techniques, 1)
        half = len(techniques) // 2
        return _ranks(techniques[:half], baseline) | _ranks(techniques[half:], baseline)


def _asked_ranks(techniques: Sequence[str], baseline: str) -> dict[str, int]:
    ranks = {}
    for technique in techniques:
        ranks[technique] = 1
        with suppress(Exception):
            recipe = baselines()[baseline].recipe(SIZE, RECIPE, reference_of(technique)[1])
            ranks[technique] = int(built(technique).recipe(recipe).world_size)
    return ranks


class _Tour:
    """Runs all tasks, the baselines' own models first; ``known`` cells are not tried again."""

    def __init__(
        self, empty: ModelsMatrix, known: Mapping[str, Mapping[str, Cell]], keep: Keep, progress: Progress
    ) -> None:
        self.empty, self.keep, self.progress = empty, keep, progress
        self.cells = {technique: dict(row) for technique, row in known.items()}
        self.free = Cores(cores())
        self.stopped = threading.Event()
        self.total = self.finished = 0
        self._ranks: dict[str, dict[str, int]] = {}  # by baseline
        self._change = threading.RLock()

    def tasks(self, model: str, baseline: str, family: Family | None) -> Iterator[Task]:
        by_ranks: dict[int, list[str]] = {}
        if baseline not in self._ranks:
            self._ranks[baseline] = _ranks(list(self.empty.code), baseline)
        for technique in self.empty.code:
            if model not in self.cells.get(technique, {}):
                by_ranks.setdefault(self._ranks[baseline][technique], []).append(technique)
        for ranks, names in by_ranks.items():
            yield Task(model, baseline, family, ranks, tuple(names))

    def make(self, tasks: Sequence[Task]) -> None:
        self.total = sum(len(task.techniques) for task in tasks)
        own = [task for task in tasks if task.family is None]
        others = [task for task in tasks if task.family is not None]
        with tempfile.TemporaryDirectory(dir=scratch()) as folder, ThreadPoolExecutor(self.free.count) as pool:
            try:
                for group in (own, others):
                    list(pool.map(lambda task: self._run(task, Path(folder)), group))
            except BaseException:
                self.stopped.set()
                raise

    def matrix(self) -> ModelsMatrix:
        with self._change:
            rows = {
                technique: {model: row[model] for model in self.empty.models if model in row}
                for technique in self.empty.code
                if (row := self.cells.get(technique, {}))
            }
        return self.empty.model_copy(update={"cells": rows})

    def _run(self, task: Task, folder: Path) -> None:
        place = TrialPlace(task.baseline, None)
        if task.family is not None:
            own = folder / task.model
            own.mkdir(exist_ok=True)
            (own / "config.json").write_text(json.dumps(dict(task.family.config)))
            place = TrialPlace(task.baseline, str(own), task.family.transformer)
        with self.free.taking(task.ranks), Crew(place, task.ranks) as crew:
            for technique in task.techniques:
                if self.stopped.is_set():
                    return
                reference = self.cells.get(technique, {}).get(task.baseline)
                cell = crew.cell(technique, reference.unmet if reference else ())
                self._put(technique, task.model, cell)
                self.finished += 1
                self.progress(min(1.0, self.finished / self.total), f"{task.model} ({technique})")
            if crew.left_behind():
                reason = "the plain run differs after all techniques: one of them leaves something behind"
                self._put(BASELINE, task.model, Cell(verdict="defect", reason=reason))
        with self._change:
            self.keep(self.matrix())

    def _put(self, technique: str, model: str, cell: Cell) -> None:
        with self._change:
            self.cells.setdefault(technique, {})[model] = cell
