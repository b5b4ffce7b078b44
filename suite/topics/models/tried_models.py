"""Has the matrix as stored: which technique works on which model, and why not. It loads no torch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import SerializerFunctionWrapHandler, model_serializer

from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baseline_modules
from suite.entries.sources import code_of
from suite.record.files import Stored, replacing
from suite.record.job import BASELINE, Setting
from suite.record.machine import versions
from suite.record.placed import read_kept

Verdict = Literal["works", "refused", "inapplicable", "defect"]
VERDICTS: tuple[Verdict, ...] = ("works", "refused", "inapplicable", "defect")
WORDS: Mapping[Verdict, str] = {
    "works": "works",
    "refused": "refuses",
    "inapplicable": "does not apply",
    "defect": "defect",
}
NAME = "models.json"
SCHEMA = 2
RULES = 1  # of what a trial asks: raise it where :mod:`suite.topics.models.trial` asks otherwise


class Cell(Stored):
    """Records what became of one technique on one model; ``reason`` says why it does not work.

    ``code`` is the hash of what was tried: the technique's code, the libraries, the model's configuration
    (:func:`codes`).
    """

    verdict: Verdict
    reason: str = ""
    code: str = ""

    @model_serializer(mode="wrap")
    def _thin(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in written(self).items() if value}


class Model(Stored):
    """Describes a model of the matrix: the baseline whose place it takes, its architecture, and a hash of its
    configuration."""

    baseline: str
    kind: str = ""
    sha256: str = ""


Codes = Mapping[str, Mapping[str, str]]
"""The hash of a cell's code by technique, then by model."""


class Placed(NamedTuple):
    technique: str
    model: str
    cell: Cell


class ModelsMatrix(Stored):
    """Holds ``cells`` by technique, then by model."""

    schema_version: int = SCHEMA
    made: str = ""
    versions: Mapping[str, str] = {}
    models: Mapping[str, Model] = {}
    cells: Mapping[str, Mapping[str, Cell]] = {}

    def placed(self) -> Iterator[Placed]:
        """Yields every cell with its place."""
        for technique, row in self.cells.items():
            for model, cell in row.items():
                yield Placed(technique, model, cell)

    def defects(self) -> list[Placed]:
        return [spot for spot in self.placed() if spot.cell.verdict == "defect"]

    def tally(self) -> str:
        """Tells how often each verdict occurs, in a sentence."""
        counts = Counter(spot.cell.verdict for spot in self.placed())
        words = {
            "works": "work",
            "refused": "are refused, each with a reason",
            "inapplicable": "do not apply",
            "defect": "defective",
        }
        parts = ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in VERDICTS)
        return f"{len(self.cells)} techniques on {len(self.models)} models: {parts}"

    def current(self, codes: Codes) -> ModelsMatrix:
        """Returns the cells that need not be tried again: of the code that is now."""
        return self._kept(lambda spot: spot.cell.code == codes.get(spot.technique, {}).get(spot.model))

    def with_newer(self, newer: ModelsMatrix) -> ModelsMatrix:
        """Returns the cells of both, where ``newer`` wins; it knows all models that there are, and of others none
        stay."""
        cells: dict[str, dict[str, Cell]] = {}
        for technique in sorted({*self.cells, *newer.cells}):
            row = {**self.cells.get(technique, {}), **newer.cells.get(technique, {})}
            cells[technique] = {model: row[model] for model in newer.models if model in row}
        return newer.model_copy(update={"cells": cells})

    def of(self, techniques: Collection[str], baselines: Collection[str] = ()) -> ModelsMatrix:
        """Returns these techniques on the models in place of these baselines', of all where none are named."""
        return self.only(
            techniques, [name for name, model in self.models.items() if not baselines or model.baseline in baselines]
        )

    def only(self, techniques: Collection[str], models: Collection[str]) -> ModelsMatrix:
        """Returns these techniques on these models."""
        kept = self._kept(lambda spot: spot.technique in techniques and spot.model in models)
        chosen = {name: model for name, model in self.models.items() if name in models}
        return kept.model_copy(update={"models": chosen})

    def _kept(self, wanted: Callable[[Placed], bool]) -> ModelsMatrix:
        cells: dict[str, dict[str, Cell]] = {}
        for spot in self.placed():
            if wanted(spot):
                cells.setdefault(spot.technique, {})[spot.model] = spot.cell
        return self.model_copy(update={"cells": cells})


def codes(techniques: Iterable[str], models: Mapping[str, Model]) -> Codes:
    """Returns the hash that a cell tried now would have, by technique, then by model: of the code that the technique
    runs on the model's baseline, of the libraries' versions, of the model's configuration and of :data:`RULES`.

    Raises UnknownId.
    """
    libraries = " ".join(f"{name} {version}" for name, version in versions().items())
    hashes: dict[str, dict[str, str]] = {}
    for technique in techniques:
        task = reference_of(technique)[1]
        of = {name: code_of(Setting(baseline=name, task=task), technique).counts for name in baseline_modules()}
        hashes[technique] = {
            name: _hash(str(RULES), libraries, of.get(model.baseline, ""), model.kind, model.sha256)
            for name, model in models.items()
        }
    return hashes


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def stale(matrix: ModelsMatrix) -> frozenset[tuple[str, str]]:
    """Returns the cells, as technique and model, that are of other code than there is now; of techniques that are gone,
    too."""
    known = catalogue()
    there = codes((name for name in matrix.cells if name == BASELINE or name in known), matrix.models)
    return frozenset(
        (spot.technique, spot.model)
        for spot in matrix.placed()
        if spot.cell.code != there.get(spot.technique, {}).get(spot.model)
    )


def read(folder: Path) -> ModelsMatrix | None:
    """Returns the matrix in a results folder; None where there is none. Raises ValueError where it cannot be read."""
    matrix = read_kept(folder / NAME, ModelsMatrix, SCHEMA, "leantrain models")
    return matrix if matrix.models else None


def read_or_why(folder: Path) -> tuple[ModelsMatrix | None, list[str]]:
    """Does as :func:`read`, with a sentence in place of the error."""
    try:
        return read(folder), []
    except ValueError as error:
        return None, [str(error)]


def write(matrix: ModelsMatrix, folder: Path) -> Path:
    """Writes the matrix into a results folder, a line for each cell, whole or not at all. Raises OSError."""
    content = matrix.model_dump(mode="json")
    rows = content.pop("cells")
    lines = [json.dumps(content, indent=1)[:-2] + ',\n "cells": {']
    for technique, row in rows.items():
        cells = [f"   {json.dumps(model)}: {json.dumps(cell, ensure_ascii=False)}" for model, cell in row.items()]
        lines.append(f"  {json.dumps(technique)}: {{\n" + ",\n".join(cells) + "\n  },")
    whole = "\n".join(lines).rstrip(",") + "\n }\n}\n"
    with replacing(folder / NAME) as partial:
        partial.write_text(whole, "utf-8")
    return folder / NAME
