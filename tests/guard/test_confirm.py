"""Only fresh runs make alarms, one comparison for all metrics of a pair; what it measured is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.guard.confirm import SEEDS, confirm
from suite.judge.history import ChangePoint, alarms, change_points, series
from suite.measure.plan import Pair
from suite.record.schema import Record
from suite.record.store import Store
from tests.factories import comparison
from tests.judge.test_history import changed_sources, past


@pytest.mark.parametrize(("pace_s", "verdict"), [(0.024, "regressed"), (0.02, "equivalent")])
def test_only_a_fresh_comparison_makes_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace_s: float, verdict: str
) -> None:
    old, new = past()
    asked: list[tuple[list[Pair], Path]] = []

    def measured(pairs: list[Pair], folder: Path, *, seeds: int, **others: Any) -> list[Record]:
        asked.append((pairs, folder))
        fresh = changed_sources(comparison("x", seeds=seeds, pace_s=pace_s))
        return [each.model_copy(update={"id": f"fresh{each.seed}"}) for each in fresh]

    monkeypatch.setattr("suite.guard.confirm.measure", measured)
    steps = confirm(change_points(series([*old, *new])), tmp_path / "results", minutes=1)
    assert {each.verdict for each in steps} == {verdict}
    alarming = {"step_time", "training_time"} if verdict == "regressed" else set()
    assert {each.series.metric for each in alarms(steps)} == alarming
    (((pair,), folder),) = asked  # one comparison answers for all metrics of a pair
    assert (pair.stack, pair.reference, pair.setting.steps) == ("x", "baseline", 200)
    assert folder != tmp_path / "results"
    assert len(Store(tmp_path / "results").read()[0]) == SEEDS  # nothing measured is lost


def test_a_step_that_a_later_one_hides_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.guard.confirm.measure", lambda *a, **k: pytest.fail("nothing to measure"))
    (one, *_) = series(comparison("x", seeds=1))
    hidden = ChangePoint(one, 0, 0, 0, 0.1, 0.01, np.zeros(3), np.ones(3), last=False)
    (step,) = confirm([hidden], tmp_path, minutes=1)
    assert step.verdict == "not comparable"
    assert step.sentence().startswith("superseded: ")


def test_a_step_whose_fresh_comparison_gave_no_number_stays_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.guard.confirm.measure", lambda *a, **k: [])
    old, new = past()
    suspected = change_points(series([*old, *new], metrics=("step_time",)))
    warnings: list[str] = []
    assert confirm(suspected, tmp_path, minutes=1, warn=warnings.append) == suspected
    assert len(warnings) == 1 and "stays suspected" in warnings[0]
