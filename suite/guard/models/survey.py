"""Makes the matrix: every technique on every model, as many models side by side as there are cores.

A baseline's own model comes first. An exact claim that its short run does not meet needs a longer run or a larger model
than a trial has, so it says nothing of the others; one that it meets must hold on every model in its place.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from suite.contract.baseline import Family, baselines
from suite.contract.catalogue import catalogue, lookup, reference_of
from suite.contract.stack import build
from suite.guard.models.crew import Crew, Place
from suite.guard.models.matrix import Cell, Matrix, Model, code_of_all
from suite.guard.models.trial import RECIPE, SIZE
from suite.measure.learning import Cores, cores
from suite.record.job import BASELINE

LIBRARIES = ("torch", "transformers", "timm")
OWN = "its own"
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Task:
    """The techniques of ``ranks`` processes on one model; ``family`` None is the baseline's own."""

    model: str
    baseline: str
    family: Family | None
    ranks: int
    techniques: tuple[str, ...]


def models() -> dict[str, tuple[str, Family | None]]:
    """Every model of the matrix by name: its baseline, and its family; None is the baseline's own model."""
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
    progress: Progress = lambda share, label: None,
) -> Matrix:
    """The matrix of these techniques on these models, of all where none are named. Raises UnknownId."""
    every = models()
    for name in techniques:
        lookup("technique", name, catalogue())
    for name in on:
        lookup("model", name, every)
    chosen = [id for id in catalogue() if not techniques or id in techniques]
    wanted = [name for name in every if not on or name in on]
    needed = {every[name][0] for name in wanted}
    tasks = [task for name in every if name in {*wanted, *needed} for task in _tasks(name, *every[name], chosen)]
    tour = _Tour(tasks, progress)
    return Matrix(
        made=datetime.now(UTC).strftime("%Y-%m-%d"),
        versions={name: version(name).split("+")[0] for name in LIBRARIES},
        models={task.model: Model(baseline=task.baseline, kind=_kind(task.family)) for task in tasks},
        code={technique: code_of_all(technique) for technique in [BASELINE, *chosen]},
        cells=tour.cells([BASELINE, *chosen]),
    )


def _kind(family: Family | None) -> str:
    config: Mapping[str, object] = family.config if family else {}
    return str(config.get("architecture") or config.get("model_type") or OWN)


def _tasks(model: str, baseline: str, family: Family | None, techniques: Sequence[str]) -> Iterator[Task]:
    by_ranks: dict[int, list[str]] = {1: [BASELINE]}
    for technique in techniques:
        by_ranks.setdefault(_ranks(technique, baseline), []).append(technique)
    for ranks, names in by_ranks.items():
        yield Task(model, baseline, family, ranks, tuple(names))


def _ranks(technique: str, baseline: str) -> int:
    """The processes that a technique takes; 1 where its recipe fails, as its trial will tell."""
    try:
        recipe = baselines()[baseline].recipe(SIZE, RECIPE, reference_of(technique)[1])
        return build(technique).recipe(recipe).world_size
    except Exception:
        return 1


class _Tour:
    """All tasks, the baselines' own models first."""

    def __init__(self, tasks: Sequence[Task], progress: Progress) -> None:
        self.tasks, self.progress = tasks, progress
        self.total = sum(len(task.techniques) for task in tasks)
        self.free = Cores(cores())
        self.stopped = threading.Event()
        self._change = threading.Lock()
        self._cells: dict[str, dict[str, Cell]] = {}
        self._spared: dict[tuple[str, str], tuple[str, ...]] = {}  # by baseline and technique
        self._finished = 0

    def cells(self, techniques: Sequence[str]) -> dict[str, dict[str, Cell]]:
        own = [task for task in self.tasks if task.family is None]
        others = [task for task in self.tasks if task.family is not None]
        with tempfile.TemporaryDirectory(prefix="leantrain-") as folder, ThreadPoolExecutor(self.free.count) as pool:
            try:
                for group in (own, others):
                    list(pool.map(lambda task: self._run(task, Path(folder)), group))
            except BaseException:
                self.stopped.set()
                raise
        order = dict.fromkeys(task.model for task in self.tasks)
        return {
            technique: {model: row[model] for model in order if model in row}
            for technique in techniques
            if (row := self._cells.get(technique, {}))
        }

    def _run(self, task: Task, folder: Path) -> None:
        place = Place(task.baseline, None)
        if task.family is not None:
            own = folder / task.model
            own.mkdir(exist_ok=True)
            (own / "config.json").write_text(json.dumps(dict(task.family.config)))
            place = Place(task.baseline, str(own), task.family.transformer)
        with self.free.taking(task.ranks), Crew(place, task.ranks) as crew:
            for technique in task.techniques:
                if self.stopped.is_set():
                    return
                one = crew.tried(technique, self._spared.get((task.baseline, technique), ()))
                if task.family is None:
                    self._spared[task.baseline, technique] = tuple(one.unmet)
                self._keep(technique, task.model, one.cell)
            if crew.left_behind():
                reason = "the plain run differs after all techniques: one of them leaves something behind"
                self._keep(BASELINE, task.model, Cell(verdict="defect", reason=reason))

    def _keep(self, technique: str, model: str, cell: Cell) -> None:
        with self._change:
            self._cells.setdefault(technique, {})[model] = cell
            self._finished += 1
            self.progress(min(1.0, self._finished / self.total), f"{model} ({technique})")
