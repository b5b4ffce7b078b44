"""Finds the installed baselines, through the entry-point group :data:`GROUP`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from suite.entries.catalogue import lookup
from suite.loop.baseline import Baseline
from suite.record.job import Setting

GROUP = "leantrain.baselines"


@cache
def baselines() -> dict[str, Baseline]:
    """Returns all installed baselines by id."""
    return {point.name: point.load()() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


@cache
def baseline_modules() -> dict[str, str]:
    """Returns the module of each installed baseline by its id, in their order; loads none."""
    return {point.name: point.module for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def baseline_of(setting: Setting) -> Baseline:
    """Raises UnknownId with the nearest names."""
    return lookup("baseline", setting.baseline, baselines())
