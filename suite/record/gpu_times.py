"""Modelled step times at the papers' own sizes, in one file of a results folder: modelled, never measured; and in
another the traces that they are modelled from, so that a new GPU or a new constant takes no new trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from suite.record.files import Stored, parse_versioned, read_plain, replacing, write_json
from suite.record.operators import TracedStep
from suite.record.paper_scale import CountPlace

NAME = "gpu_times.json"
TRACES = "gpu_traces.json.gz"
SCHEMA = 1


class ModelledTime(Stored):
    """One step of a stack on a named GPU beside its reference's, modelled; or the reason why it is not.

    Attributes:
        gpu: its name among :mod:`suite.record.devices`.
        step_s: of the stack, in s.
        ratio: stack over reference.
        half_width: 0.2 says that the ratio is believed from a factor of 1/1.2 to one of 1.2; None where both run equal
            operators, or nothing is modelled.
    """

    place: CountPlace
    gpu: str
    stack: str
    reference: str
    step_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    half_width: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    unavailable: str = ""


class GpuTimes(Stored):
    schema_version: int = SCHEMA
    times: Sequence[ModelledTime] = ()

    def with_newer(self, newer: ModelledTime) -> GpuTimes:
        """These with one more, in the place of an older one of its stack there."""
        known = {(time.place, time.gpu, time.stack): time for time in [*self.times, newer]}
        return self.model_copy(update={"times": [known[key] for key in sorted(known)]})

    def only(self, stacks: Collection[str], baselines: Collection[str]) -> GpuTimes:
        """The times of some stacks on some baselines; all where none is named."""
        wanted = [
            time
            for time in self.times
            if (not baselines or time.place.baseline in baselines) and (not stacks or time.stack in stacks)
        ]
        return self.model_copy(update={"times": wanted})


def read(folder: Path) -> GpuTimes:
    """The modelled times of a results folder. Raises ValueError or OSError where they cannot be read."""
    path = folder / NAME
    try:
        return parse_versioned(read_plain(path), GpuTimes, SCHEMA)
    except FileNotFoundError:
        return GpuTimes()
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and model again: leantrain count --keep --gpu A100-80") from None


def write(times: GpuTimes, folder: Path) -> Path:
    """Writes the times into a results folder, whole or not at all. Raises OSError."""
    write_json(times, folder / NAME)
    return folder / NAME


@dataclass(frozen=True)
class KeptTrace:
    """The operators of one step of a stack, or why there are none; ``code`` is a hash of the code that ran."""

    code: str
    step: TracedStep | None = None
    unavailable: str = ""


Traces = Mapping[tuple[CountPlace, str], KeptTrace]
"""By place and stack."""


def read_traces(folder: Path) -> Traces:
    """The traces of a results folder. Raises ValueError or OSError where they cannot be read."""
    path = folder / TRACES
    try:
        known = json.loads(gzip.decompress(read_plain(path)))
        return {
            (CountPlace(*each["place"]), each["stack"]): KeptTrace(
                each["code"], TracedStep.from_json(each["step"]) if each["step"] else None, each["unavailable"]
            )
            for each in known
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}; delete it and trace again: leantrain count --keep --gpu A100-80") from None


def write_traces(traces: Traces, folder: Path) -> None:
    """Writes the traces into a results folder, equal ones to equal bytes. Raises OSError."""
    stored = [
        {"place": place, "stack": stack, "code": trace.code, "step": trace.step.as_json() if trace.step else "",
         "unavailable": trace.unavailable}
        for (place, stack), trace in sorted(traces.items(), key=lambda item: item[0])
    ]  # fmt: skip
    with replacing(folder / TRACES) as partial:
        partial.write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
