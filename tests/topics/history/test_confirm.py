"""Only fresh runs make alarms, one comparison for all metrics of a pair; what it measured is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.measure.campaign import Effort, Measured
from suite.measure.missing import Pair, Wanted
from suite.record.schema import Code, Line
from suite.record.store import Records, Store
from suite.topics.history.change_points import ChangePoint, alarms, change_points, series
from suite.topics.history.confirm import SEEDS, confirm
from tests.factories import evidence, learned, records, timings

TIMES = ("step_time", "training_time")


def revised(lines: Sequence[Any], name: str, started: str) -> list[Line]:
    """The same evidence of other code, later."""
    code = Code(trajectory=name * 32, counts=name * 32)
    changed: list[Line] = []
    for each in lines:
        update: dict[str, Any] = {"id": name + each.id[1:], "started": f"2026-{started}{each.started[7:]}"}
        if each.kind == "timed":
            update["contenders"] = [side.model_copy(update={"code": code}) for side in each.contenders]
        else:
            update["code"] = code
        changed.append(each.model_copy(update=update))
    return changed


def past(before_s: float = 0.02, after_s: float = 0.024) -> Records:
    """Timings of two revisions of one technique, the later ones at another pace."""
    old, new = (timings("x", 12, pace_s=pace_s) for pace_s in (before_s, after_s))
    return records(old, revised(new, "b", "02"))


@pytest.mark.parametrize(("pace_s", "verdict"), [(0.024, "regressed"), (0.02, "equivalent")])
def test_only_a_fresh_comparison_makes_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace_s: float, verdict: str
) -> None:
    asked: list[tuple[Sequence[Pair], Path, Effort]] = []

    def measured(pairs: Sequence[Pair], folder: Path, effort: Effort, **others: Any) -> Measured:
        asked.append((pairs, folder, effort))
        return Measured(revised(timings("x", effort.wanted.timings, pace_s=pace_s), "c", "03"))

    monkeypatch.setattr("suite.topics.history.confirm.measure", measured)
    steps = confirm(change_points(series(past(), metrics=TIMES)), tmp_path / "results", minutes=1)
    assert {each.verdict for each in steps} == {verdict}
    assert {each.series.metric for each in alarms(steps)} == (set(TIMES) if verdict == "regressed" else set())
    (((pair,), folder, effort),) = asked  # one comparison answers for all metrics of a pair
    assert (pair.stack, pair.reference, pair.setting.steps) == ("x", "baseline", 200)
    assert folder != tmp_path / "results"
    assert effort.wanted == Wanted(seeds=0, timings=SEEDS, tuned=False)  # times need nothing learned
    assert len(Store(tmp_path / "results").read()[0].timed) == SEEDS  # nothing measured is lost


def test_a_loss_is_confirmed_by_learning_and_nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Wanted] = []

    def runs(final: float, seeds: int) -> list[Any]:
        lines = evidence("x", final=final, seeds=seeds, replicates=0, ruler=False)
        return [each for each in lines if each.kind == "learned"]

    def measured(pairs: Sequence[Pair], folder: Path, effort: Effort, **others: Any) -> Measured:
        asked.append(effort.wanted)
        return Measured(revised(runs(2.2, effort.wanted.seeds), "c", "03"))

    monkeypatch.setattr("suite.topics.history.confirm.measure", measured)
    monkeypatch.setattr("suite.topics.history.change_points.card_reference", lambda stack: "baseline")
    both = records(runs(2.0, 12), revised(runs(2.2, 12), "b", "02"))
    (step,) = confirm(change_points(series(both, metrics=("loss",))), tmp_path, minutes=1)
    assert step.verdict == "regressed"
    assert asked == [Wanted(seeds=SEEDS, timings=0, tuned=False)]


def test_a_step_that_a_later_one_hides_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.topics.history.confirm.measure", lambda *a, **k: pytest.fail("nothing to measure"))
    (one, *_) = series(records(timings("x", 1)))
    hidden = ChangePoint(one, 0, 0, 0, 0.1, 0.01, np.zeros(3), np.ones(3), last=False)
    (step,) = confirm([hidden], tmp_path, minutes=1)
    assert step.verdict == "not comparable"
    assert step.sentence().startswith("superseded: ")


@pytest.mark.parametrize(
    ("lines", "words"),
    [([], "too few replicates"), ([learned()], "too few replicates"), (timings("x", 3), "other data")],
)
def test_a_step_whose_fresh_comparison_gave_no_number_stays_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Any], words: str
) -> None:
    conditions = [each.conditions.model_copy(update={"data_sha256": "e" * 64}) for each in lines]
    other = [each.model_copy(update={"conditions": its}) for each, its in zip(lines, conditions, strict=True)]
    monkeypatch.setattr("suite.topics.history.confirm.measure", lambda *a, **k: Measured(other))
    suspected = change_points(series(past(), metrics=("step_time",)))
    warnings: list[str] = []
    assert confirm(suspected, tmp_path, minutes=1, warn=warnings.append) == suspected
    assert len(warnings) == 1 and f"stays suspected: its fresh comparison had {words}" in warnings[0]
