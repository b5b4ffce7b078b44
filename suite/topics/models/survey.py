"""Makes the matrix: every technique on every model, as many models side by side as there are cores."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from suite.entries.catalogue import catalogue, lookup, reference_of
from suite.entries.installed import baselines
from suite.entries.together import built
from suite.loop.baseline import Family
from suite.measure.contenders.deputies import in_child
from suite.measure.learning import Cores, cores
from suite.process.child import ContenderFailed
from suite.process.scratch import scratch
from suite.record.files import object_of
from suite.record.job import BASELINE
from suite.record.machine import versions
from suite.topics.models.crew import Crew, TrialPlace, server
from suite.topics.models.trial import RECIPE, SIZE
from suite.topics.models.tried_models import Cell, Codes, Model, ModelsMatrix, codes

OWN = "its own"
RECIPES_S = 60.0  # for the recipes of all techniques, or of one
KEPT_EVERY_S = 15.0  # what a killed command loses at most
Progress = Callable[[float, str], None]
Keep = Callable[[ModelsMatrix], None]


@dataclass(frozen=True)
class Task:
    """Names the techniques of ``ranks`` processes on one model; ``config`` None is the baseline's own."""

    model: str
    baseline: str
    config: Mapping[str, Any] | None
    transformer: bool
    ranks: int
    techniques: tuple[str, ...]


class Survey(NamedTuple):
    """Holds a matrix, how many of its cells were tried now, and the CPU time of all processes that tried them."""

    matrix: ModelsMatrix
    tried: int
    cpu_s: float


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
) -> Survey:
    """Returns the matrix of these techniques on these models, of all where none are named, without what ``earlier``
    knows.

    ``keep`` gets what is there every KEPT_EVERY_S seconds and after each model. Raises UnknownId.
    """
    every = models()
    for name in techniques:
        lookup("technique", name, catalogue())
    for name in on:
        lookup("model", name, every)
    chosen = [id for id in catalogue() if not techniques or id in techniques]
    wanted = set(on or every)
    known = {name: _model(baseline, family) for name, (baseline, family) in every.items()}
    now = codes([BASELINE, *chosen], known)
    empty = ModelsMatrix(made=datetime.now(UTC).strftime("%Y-%m-%d"), versions=versions(), models=known)
    tour = _Tour(empty, now, earlier.current(now).cells, keep, progress)
    tour.make([task for name in every if name in wanted for task in tour.tasks(name, *every[name])])
    return Survey(tour.matrix().only(now, wanted), tour.tried, tour.cpu_s)


def survey_folder(
    folder: Path,
    techniques: Collection[str] = (),
    progress: Progress = lambda share, label: None,
) -> Survey:
    """Returns the matrix of these techniques on the user's model whose ``config.json`` is in ``folder``, in the place
    of the first baseline that takes it.

    Raises ValueError where none takes it, UnknownId, and FileNotFoundError.
    """
    for name in techniques:
        lookup("technique", name, catalogue())
    baseline, content = place_of(folder), object_of(folder / "config.json")
    family = Family(content)
    name = folder.resolve().name
    known = {name: _model(baseline, family)}
    now = codes([BASELINE, *(id for id in catalogue() if not techniques or id in techniques)], known)
    empty = ModelsMatrix(made=datetime.now(UTC).strftime("%Y-%m-%d"), versions=versions(), models=known)
    tour = _Tour(empty, now, {}, lambda matrix: None, progress)
    tour.make(list(tour.tasks(name, baseline, family)))
    return Survey(tour.matrix(), tour.tried, tour.cpu_s)


def place_of(folder: Path) -> str:
    """Returns the first baseline in whose place the model of a folder can be built. Raises ValueError with each one's
    reason where there is none, FileNotFoundError without a config.json."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json there; give a folder with a model's configuration")
    refused = []
    for name in baselines():
        try:
            mendable = (ValueError, FileNotFoundError)
            in_child(_build, name, str(folder), limit_s=RECIPES_S, mendable=mendable, server=server())
            return name
        except (ValueError, ContenderFailed) as error:
            refused.append(f"{name}: {str(error).removeprefix(f'--model {folder}: ')}")
    raise ValueError(f"{folder}: no baseline has a place for this model; {'; '.join(refused)}")


def _build(baseline: str, folder: str) -> None:
    chosen = baselines()[baseline]
    chosen.model(SIZE, chosen.data(SIZE, "pretrain"), folder)


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
        return in_child(_asked_ranks, list(techniques), baseline, limit_s=RECIPES_S, server=server())
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
    """Runs all tasks; ``known`` cells are not tried again."""

    def __init__(
        self,
        empty: ModelsMatrix,
        codes: Codes,
        known: Mapping[str, Mapping[str, Cell]],
        keep: Keep,
        progress: Progress,
    ) -> None:
        self.empty, self.codes, self.keep, self.progress = empty, codes, keep, progress
        self.cells = {technique: dict(row) for technique, row in known.items()}
        self.free = Cores(cores())
        self.stopped = threading.Event()
        self.total = self.tried = 0
        self.cpu_s = 0.0
        self._next_s = time.monotonic() + KEPT_EVERY_S
        self._ranks: dict[str, dict[str, int]] = {}  # by baseline
        self._change = threading.RLock()

    def tasks(self, model: str, baseline: str, family: Family | None) -> Iterator[Task]:
        by_ranks: dict[int, list[str]] = {}
        if baseline not in self._ranks:
            self._ranks[baseline] = _ranks(list(self.codes), baseline)
        for technique in self.codes:
            if model not in self.cells.get(technique, {}):
                by_ranks.setdefault(self._ranks[baseline][technique], []).append(technique)
        config, transformer = (family.config, family.transformer) if family else (None, True)
        for ranks, names in by_ranks.items():
            yield Task(model, baseline, config, transformer, ranks, tuple(names))

    def make(self, tasks: Sequence[Task]) -> None:
        self.total = sum(len(task.techniques) for task in tasks)
        with tempfile.TemporaryDirectory(dir=scratch()) as folder, ThreadPoolExecutor(self.free.count) as pool:
            try:
                list(pool.map(lambda task: self._run(task, Path(folder)), tasks))
            except BaseException:
                self.stopped.set()
                raise

    def matrix(self) -> ModelsMatrix:
        with self._change:
            rows = {
                technique: {model: row[model] for model in self.empty.models if model in row}
                for technique in self.codes
                if (row := self.cells.get(technique, {}))
            }
        return self.empty.model_copy(update={"cells": rows})

    def _run(self, task: Task, folder: Path) -> None:
        place = TrialPlace(task.baseline, None)
        if task.config is not None:
            own = folder / task.model
            own.mkdir(exist_ok=True)
            (own / "config.json").write_text(json.dumps(dict(task.config)))
            place = TrialPlace(task.baseline, str(own), task.transformer)
        with self.free.taking(task.ranks), Crew(place, task.ranks) as crew:
            for technique in task.techniques:
                if self.stopped.is_set():
                    return
                self._put(technique, task.model, crew.cell(technique))
                self._keep_now_and_then()
                self.tried += 1
                self.progress(min(1.0, self.tried / self.total), f"{task.model} ({technique})")
            if crew.left_behind():
                reason = "the plain run differs after all techniques: one of them leaves something behind"
                self._put(BASELINE, task.model, Cell(verdict="defect", reason=reason))
            crew.close()
        with self._change:
            self.cpu_s += crew.cpu_s
            self.keep(self.matrix())

    def _keep_now_and_then(self) -> None:
        with self._change:
            if time.monotonic() >= self._next_s:
                self.keep(self.matrix())
                self._next_s = time.monotonic() + KEPT_EVERY_S

    def _put(self, technique: str, model: str, cell: Cell) -> None:
        with self._change:
            coded = cell.model_copy(update={"code": self.codes[technique][model]})
            self.cells.setdefault(technique, {})[model] = coded
