"""Finds the form that a baseline takes to adapt to a user's data: labels ask for classification, instructions for
answers.

A baseline whose class stands in the module ``m`` has its forms in ``m_tasks``, in a function ``form(setting)``: a
:class:`~suite.loop.baseline.Baseline` of the same id, or None where the baseline itself will do. Pre-training never
asks, and a run that does not adapt does not load them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from suite.entries.installed import baseline_of
from suite.loop.baseline import Baseline
from suite.record.job import Setting


def tasks_module(baseline_module: str) -> str | None:
    """Returns the module with the forms of the baseline whose class stands in ``baseline_module``; None where it has
    none."""
    name = f"{baseline_module}_tasks"
    return name if find_spec(name) else None


def baseline_for(setting: Setting) -> Baseline:
    """Returns the baseline of a setting, in the form that its task and data ask for.

    Raises UnknownId with the nearest names, ValueError or OSError for data that cannot be read.
    """
    baseline = baseline_of(setting)
    if setting.task != "adapt" or (module := tasks_module(type(baseline).__module__)) is None:
        return baseline
    own: Baseline | None = import_module(module).form(setting)
    return own or baseline
