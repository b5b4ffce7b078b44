"""What all evidence says of itself, and the states that a learned run leaves for timing."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from suite.contract.adapting import baseline_for
from suite.contract.setting import check_locations
from suite.contract.sources import code_of
from suite.measure.archives import is_whole
from suite.record.files import cache_folder
from suite.record.job import Job, Setting
from suite.record.machine import fingerprint
from suite.record.schema import Conditions

Progress = Callable[[float, str], None]
"""``progress(share, what)``: the finished share in [0, 1] and what is being done."""


def silent(share: float, what: str) -> None:
    """The progress of what nobody watches."""


def part(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of one of several parts that are as long."""
    return lambda share, what: progress((number + share) / parts, what)


@cache
def conditions_of(setting: Setting) -> Conditions:
    """The conditions that evidence of this setting has. Prepares the data where it is not cached.

    Raises ValueError or OSError for data that cannot be read.
    """
    check_locations(setting)
    baseline = baseline_for(setting)
    data = baseline.data(setting.size, setting.task, setting.data)
    known = setting.model_dump(exclude={"steps", "data"})
    steps = baseline.recipe_of(setting).steps
    return Conditions(**known, baseline_version=baseline.version, steps=steps, data=data.name, data_sha256=data.sha256)


@dataclass
class Heading:
    """What evidence of a setting begins with; made when its measurement starts, read when it ends."""

    setting: Setting
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    start_s: float = field(default_factory=time.monotonic)

    def fields(self) -> dict[str, Any]:
        """The fields of :class:`suite.record.schema.Evidence`."""
        return {
            "id": uuid.uuid4().hex,
            "started": self.started.isoformat(timespec="seconds"),
            "duration_s": round(time.monotonic() - self.start_s, 3),
            "leantrain": version("leantrain"),
            "machine": fingerprint(self.setting.device, self.setting.threads),
            "conditions": conditions_of(self.setting),
        }


@dataclass(frozen=True)
class States:
    """The training states of a job at the beginnings of its fifths, in the cache.

    Their folder is named by all that decides them, so none is ever stale.
    """

    job: Job

    @property
    def folder(self) -> Path:
        setting = self.job.setting
        parts = (conditions_of(setting).key, self.job.stack, self.job.seed, code_of(setting, self.job.stack).trajectory)
        machine = fingerprint(setting.device, setting.threads).key
        name = hashlib.sha256(repr((*parts, machine, torch.__version__)).encode()).hexdigest()[:24]
        return cache_folder() / "states" / name

    def path(self, fifth: int) -> Path:
        """The state after ``fifth`` fifths of the run; each rank has a file of its own that begins with this name."""
        return self.folder / f"{fifth}.pt"

    def complete(self, fifths: range) -> bool:
        """Whether rank 0 has written all of them, and none was damaged since."""
        return all(is_whole(self.path(each).with_name(f"{each}.pt.0")) for each in fifths)
