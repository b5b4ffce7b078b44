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

OF_SEVERAL_RANKS = {"parallelism", "communication"}  # categories; starting ranks takes longest


def on_request(card: Card, baseline: str) -> list[pytest.MarkDecorator]:
    """What several ranks do is tried on one of a card's baselines in every run, another for each; on all with
    ``-m slow``."""
    if card.category not in OF_SEVERAL_RANKS:
        return []
    turn = sorted(each for each in catalogue() if catalogue()[each].card.category == card.category).index(card.id)
    return [] if baseline == card.baselines[turn % len(card.baselines)] else [pytest.mark.slow]


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
