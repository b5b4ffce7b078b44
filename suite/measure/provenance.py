"""Has what all evidence says of itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from suite.entries.adapting import baseline_for
from suite.entries.setting import check_locations
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import Conditions

Progress = Callable[[float, str], None]
"""``progress(share, what)``: the finished share in [0, 1] and what is being done."""


def silent(share: float, what: str) -> None:
    """Drops the progress of what nobody watches."""


def part(progress: Progress, number: int, parts: int) -> Progress:
    """Returns the progress of one of several parts that are as long."""
    return portion(progress, number / parts, (number + 1) / parts)


def portion(progress: Progress, low: float, high: float) -> Progress:
    """Returns the progress of what takes it from ``low`` to ``high``."""
    return lambda share, what: progress(low + share * (high - low), what)


@cache
def conditions_of(setting: Setting) -> Conditions:
    """Returns the conditions that evidence of this setting has. Prepares the data where it is not cached.

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
    """Holds what evidence of a setting begins with; made when its measurement starts, read when it ends. ``numerics``:
    the arithmetic of its runs."""

    setting: Setting
    numerics: str
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    start_s: float = field(default_factory=time.monotonic)

    def fields(self) -> dict[str, Any]:
        """Returns the fields of :class:`suite.record.schema.Evidence`."""
        return {
            "id": uuid.uuid4().hex,
            "started": self.started.isoformat(timespec="seconds"),
            "duration_s": round(time.monotonic() - self.start_s, 3),
            "leantrain": version("leantrain"),
            "machine": fingerprint(self.setting.device, self.setting.threads),
            "conditions": conditions_of(self.setting),
            "numerics": self.numerics,
        }
