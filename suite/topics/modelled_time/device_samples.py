"""Has what single operators and whole reference steps were measured to take on one device: a file in its machine's
folder.

Raw samples are kept, and constants made of them where they are wanted (:mod:`suite.topics.modelled_time.device_model`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from suite.record.files import Stored, write_json
from suite.record.operator_counts import Operator, TracedStep, operator_of
from suite.record.placed import CountPlace, read_kept

NAME = "operators.json"
SCHEMA = 1
COMMAND = "leantrain kernels --calibrate"


class OperatorSample(Stored):
    """Records one operator's ``seconds`` a call, and ``host_s`` until a call returns where the device works on beside
    it (0 on a CPU, whose call is its work)."""

    said: str
    seconds: float = Field(gt=0, allow_inf_nan=False)
    host_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def operator(self) -> Operator:
        return operator_of(json.loads(self.said))


class ReferenceStep(Stored):
    """Records a baseline's whole step: its operators, what it took, and ``host_s`` until it was asked for (0 on a
    CPU)."""

    place: CountPlace
    traced: str
    step_s: float = Field(gt=0, allow_inf_nan=False)
    host_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def step(self) -> TracedStep:
        return TracedStep.from_json(self.traced)


class OwnDevice(Stored):
    """Records what was measured on a ``device``: cpu or cuda, of the ``machine`` of that name; ``refused``: why an
    operator has no sample, by its name and type; ``load``: others' processes that wanted a core when it began;
    ``took_s``: all of it."""

    schema_version: int = SCHEMA
    machine: str = ""
    title: str = ""
    device: str = "cpu"
    made: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    load: float | None = None
    took_s: float = 0.0
    samples: Sequence[OperatorSample] = ()
    references: Sequence[ReferenceStep] = ()
    refused: dict[str, str] = Field(default_factory=dict)


def read(folder: Path) -> OwnDevice:
    """Reads what the folder of a machine has of its device; no samples where nothing was measured. Raises ValueError or
    OSError where it cannot be read."""
    return read_kept(folder / NAME, OwnDevice, SCHEMA, COMMAND)


def write(known: OwnDevice, folder: Path) -> Path:
    """Writes it, whole or not at all. Raises OSError."""
    write_json(known, folder / NAME)
    return folder / NAME
