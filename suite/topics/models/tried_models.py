"""Has the matrix as stored: which technique works on which model, and why not. It loads no torch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import SerializerFunctionWrapHandler, model_serializer

from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baseline_modules
from suite.entries.sources import code_of
from suite.record.files import Stored, write_json
from suite.record.job import BASELINE, Setting
from suite.record.machine import versions
from suite.record.placed import read_kept

Verdict = Literal["works", "refused", "defect"]
VERDICTS: tuple[Verdict, ...] = ("works", "refused", "defect")
NAME = "models.json"
SCHEMA = 1


class Cell(Stored):
    """Records what became of one technique on one model; ``reason`` says why it does not work.

    ``unmet`` are the identities that so short a run of a baseline's own model does not meet, and cannot judge.
    """

    verdict: Verdict
    reason: str = ""
    unmet: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _thin(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in written(self).items() if value}


class Model(Stored):
    """Describes a model of the matrix: the baseline whose place it takes, its architecture, and a hash of its
    configuration."""

    baseline: str
    kind: str = ""
    sha256: str = ""


class Placed(NamedTuple):
    technique: str
    model: str
    cell: Cell


class ModelsMatrix(Stored):
    """Holds ``cells`` by technique, then by model; ``code`` are the hashes of each technique's code when it was
    tried."""

    schema_version: int = SCHEMA
    made: str = ""
    versions: Mapping[str, str] = {}
    models: Mapping[str, Model] = {}
    code: Mapping[str, str] = {}
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
        words = {"works": "work", "refused": "are refused, each with a reason", "defect": "defective"}
        parts = ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in VERDICTS)
        return f"{len(self.cells)} techniques on {len(self.models)} models: {parts}"

    def still(self, newer: ModelsMatrix) -> dict[str, dict[str, Cell]]:
        """Returns the cells that ``newer`` need not try again: of the same code, on the same model."""
        return {
            technique: {model: cell for model, cell in row.items() if self.models[model] == newer.models.get(model)}
            for technique, row in self.cells.items()
            if technique in newer.code and self.code.get(technique) == newer.code[technique]
        }

    def with_newer(self, newer: ModelsMatrix) -> ModelsMatrix:
        """Returns both, where ``newer`` wins. Cells of a technique that it tried under other code, or of other models,
        go."""
        still = self.still(newer)
        cells: dict[str, dict[str, Cell]] = {}
        for technique in sorted({*self.cells, *newer.cells}):
            older = still.get(technique, {}) if technique in newer.code else self.cells[technique]
            row = {**older, **newer.cells.get(technique, {})}
            cells[technique] = {model: row[model] for model in newer.models if model in row}
        return newer.model_copy(update={"code": dict(sorted({**self.code, **newer.code}.items())), "cells": cells})

    def of(self, techniques: Collection[str], baselines: Collection[str] = ()) -> ModelsMatrix:
        """Returns these techniques on the models in place of these baselines', of all where none are named."""
        return self.only(
            techniques, [name for name, model in self.models.items() if not baselines or model.baseline in baselines]
        )

    def only(self, techniques: Collection[str], models: Collection[str]) -> ModelsMatrix:
        """Returns these techniques on these models."""
        return self.model_copy(
            update={
                "models": {name: model for name, model in self.models.items() if name in models},
                "code": {name: code for name, code in self.code.items() if name in techniques},
                "cells": {
                    technique: {model: cell for model, cell in row.items() if model in models}
                    for technique, row in self.cells.items()
                    if technique in techniques
                },
            }
        )


def code_of_all(technique: str) -> str:
    """Returns one hash of all the code that a technique's cells run: on every baseline, and the libraries' versions.

    Raises UnknownId.
    """
    task = reference_of(technique)[1]
    hashes = [code_of(Setting(baseline=name, task=task), technique).counts for name in baseline_modules()]
    return hashlib.sha256(" ".join([*hashes, *versions().values()]).encode()).hexdigest()[:16]


def changed(matrix: ModelsMatrix) -> frozenset[str]:
    """Returns the techniques whose code is another than when they were tried; those that are gone, too."""
    known = catalogue()
    return frozenset(
        technique
        for technique, code in matrix.code.items()
        if (technique != BASELINE and technique not in known) or code_of_all(technique) != code
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
    """Writes the matrix into a results folder, whole or not at all. Raises OSError."""
    write_json(matrix, folder / NAME)
    return folder / NAME
