"""Tells which depths train with ReZero, with norms, and with neither:
:mod:`techniques.initialization.shared.depth_study`."""

from __future__ import annotations

from suite.topics.studies.lab import Lab, StudyTable
from techniques.initialization.shared.depth_study import BASELINES as BASELINES
from techniques.initialization.shared.depth_study import depth_study
from techniques.initialization.shared.depth_study import plot as plot


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``trainable_depth`` and ``one_step``."""
    return depth_study(lab, "rezero")
