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
from tests.techniques.tried_mutants import is_as_tried

OF_SEVERAL_RANKS = {"parallelism", "communication"}  # categories; starting ranks takes longest


def on_request(card: Card, baseline: str) -> list[pytest.MarkDecorator]:
    """What several ranks do is tried on one of a card's baselines in every run, on all with ``-m slow``."""
    return [pytest.mark.slow] if card.category in OF_SEVERAL_RANKS and baseline != turn_of(card) else []


def turn_of(card: Card) -> str:
    """One of a card's baselines, another for each of its category."""
    turn = sorted(each for each in catalogue() if catalogue()[each].card.category == card.category).index(card.id)
    return card.baselines[turn % len(card.baselines)]


def leave_unless_changed(id: str, baseline: str) -> None:
    """Skips what an entry does on other baselines than :func:`turn_of` its card, where it is as it was when all were
    tried (``make mutants``); LEANTRAIN_TESTS=all leaves nothing."""
    entry = catalogue()[id]
    if baseline != turn_of(entry.card) and is_as_tried(entry):
        pytest.skip(
            f"as it was when it was tried on all; this run tries {turn_of(entry.card)}, LEANTRAIN_TESTS=all all"
        )


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
