"""A training run in one line, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh

from suite.entries.card import Card
from suite.entries.catalogue import catalogue
from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.reading.recording import Recording
from suite.record.job import Job, Setting, Split

OF_SEVERAL_RANKS = {"parallelism", "communication"}  # categories
IN_EVERY_RUN = frozenset({"albert_sharing", "bitfit", "ckpt_chen_sqrt", "esam", "lawa", "lion", "mass", "zero2"})
"""The entries that a run of the tests breaks on purpose: of those that together go every way that the harness has, some
that take little time. It compiles their kernels anew, and looks whether their hashes cover what they call."""


def home(card: Card) -> str:
    """The baseline on which a run of the tests tries an entry; another for each of a category."""
    turn = sorted(each for each in catalogue() if catalogue()[each].card.category == card.category).index(card.id)
    return card.baselines[turn % len(card.baselines)]


def unless(tried: bool) -> list[pytest.MarkDecorator]:
    """The mark of a case that a run of the tests leaves to ``make mutants``, and to ``--only``, unless it is tried."""
    return [] if tried else [pytest.mark.whole]


def new_run(
    baseline: str,
    technique: str | Technique = "baseline",
    *,
    seed: int = 0,
    weights: Path | None = None,
    split: Split | None = None,
    mesh: DeviceMesh | None = None,
    **setting: Any,
) -> Run:
    """``technique``: a stack's spelling, or an instance that stands in for what no spelling names."""
    stack, instance = (technique, None) if isinstance(technique, str) else ("baseline", technique)
    job = Job(setting=Setting(baseline=baseline, **setting), stack=stack, seed=seed)
    return run_of(job, technique=instance, weights=weights, split=split, mesh=mesh)


def new_recording(baseline: str, technique: str | Technique = "baseline", **setting: Any) -> Recording:
    """A :func:`new_run` whose steps are recorded, on all examples."""
    return Recording(new_run(baseline, technique, **setting))


@dataclass
class Planted(Technique):
    """Base of a test's own techniques, for tests of what they do and not of whether they attach."""

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"planted": Act(count=1)}
