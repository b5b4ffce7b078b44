"""Keeps modelled step times at the papers' own sizes, in one file of a results folder: modelled, never measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from suite.record.files import Stored, write_json
from suite.record.placed import PlacedStep, newest, read_kept

NAME = "gpu_times.json"
SCHEMA = 1


class ModelledTime(PlacedStep):
    """Holds one step of a stack on a named GPU beside its reference's, modelled; or the reason why it is not.

    Attributes:
        gpu: its name among :mod:`suite.topics.modelled_time.devices`.
        step_s: of the stack, in s.
        ratio: stack over reference.
        half_width: 0.2 says that the ratio is believed from a factor of 1/1.2 to one of 1.2; None where both run equal
            operators, or nothing is modelled.
    """

    gpu: str
    step_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    half_width: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.place, self.gpu, self.stack)

    @property
    def band(self) -> tuple[float, float]:
        """Returns the ends between which the ratio is believed; nan where there is none."""
        ratio, width = self.ratio or math.nan, 1 + (self.half_width or 0.0)
        return ratio / width, ratio * width


class GpuTimes(Stored):
    schema_version: int = SCHEMA
    times: Sequence[ModelledTime] = ()

    def with_newer(self, newer: ModelledTime) -> GpuTimes:
        """Returns these with one more, in the place of an older one of its stack there."""
        return self.model_copy(update={"times": newest(self.times, [newer])})

    def only(self, stacks: Collection[str], baselines: Collection[str]) -> GpuTimes:
        """Returns the times of some stacks on some baselines; all where none is named."""
        wanted = [
            time
            for time in self.times
            if (not baselines or time.place.baseline in baselines) and (not stacks or time.stack in stacks)
        ]
        return self.model_copy(update={"times": wanted})


def read(folder: Path) -> GpuTimes:
    """Returns the modelled times of a results folder. Raises ValueError or OSError where they cannot be read."""
    return read_kept(folder / NAME, GpuTimes, SCHEMA, "leantrain count --keep --gpu A100-80")


def write(times: GpuTimes, folder: Path) -> Path:
    """Writes the times into a results folder, whole or not at all. Raises OSError."""
    write_json(times, folder / NAME)
    return folder / NAME
