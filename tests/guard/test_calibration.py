"""Calibrations: when a machine may gate, and what becomes of files that are old, foreign or damaged."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from suite.guard.calibration import (
    Calibration,
    Gate,
    Uncalibrated,
    begun,
    beside,
    calibrate,
    path_of,
    report,
    store,
    stored,
    timed_job,
    unfit,
)
from suite.guard.gate import DESIGN, Decision, GateTiming
from tests.factories import MACHINE

NOW = datetime.now(UTC)
JOB = timed_job("cpu", 1)


def calibration(alarms: int = 0, gates: int = 20, caught: int = 4, planted: int = 4, **changes: Any) -> Calibration:
    def runs(count: int, fired: int, shift: float) -> list[Gate]:
        noisy = [shift + 0.01 * (-1) ** n for n in range(10)]
        return [Gate(verdict="regressed" if n < fired else "equivalent", pairs=noisy, seconds=20) for n in range(count)]

    values: dict[str, Any] = {
        "machine": MACHINE,
        "made": NOW,
        "design": DESIGN,
        "margin": 0.03,
        "budget_s": 60,
        "job": JOB,
        "planted_slower": 0.1,
        "unchanged": runs(gates, alarms, 0.0),
        "planted": runs(planted, caught, 0.095),
    }
    return Calibration(**values | changes)


def reason(known: Calibration, margin: float = 0.03, budget_s: float = 60.0, age: timedelta = timedelta()) -> str:
    return unfit(known, MACHINE, margin=margin, budget_s=budget_s, now=NOW + age)


def test_a_quiet_machine_may_gate() -> None:
    quiet = calibration()
    assert reason(quiet) == reason(quiet, margin=0.05, budget_s=30) == reason(quiet, age=timedelta(days=6)) == ""
    assert quiet.sigma == pytest.approx(0.01)
    effects = quiet.smallest_effects()
    assert list(effects.values()) == sorted(effects.values(), reverse=True)
    assert "0 of 20 gates of unchanged code, 0.0% [0.0%, 16.8%]" in report(quiet)[0]


@pytest.mark.parametrize(
    ("known", "how", "words"),
    [
        (calibration(), {"age": timedelta(days=8)}, "older than 7 days"),
        (calibration(), {"margin": 0.02}, "calibrate --margin 0.02"),
        (calibration(), {"budget_s": 90.0}, "--budget 90"),
        (calibration(design=DESIGN | {"rounds": 3}), {}, "another gate design"),
        (calibration(machine=MACHINE.model_copy(update={"key": "other"})), {}, "another machine"),
        (calibration(alarms=4), {}, "4 of 20 gates of unchanged code"),
        (calibration(caught=3), {}, "only 3 of 4 planted slow-downs of 10%"),
    ],
)
def test_each_reason_not_to_gate_is_said(known: Calibration, how: dict[str, Any], words: str) -> None:
    assert words in reason(known, **how)
    assert "leantrain calibrate" in reason(known, **how)


def test_the_rate_is_judged_by_its_interval_not_by_its_estimate() -> None:
    """3 alarms of 20 are 15 %, but compatible with 3.2 %: no proof that the machine alarms too often."""
    assert reason(calibration(alarms=3)) == ""


def test_a_stored_calibration_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    with pytest.raises(Uncalibrated, match="not calibrated; run: leantrain calibrate"):
        stored(MACHINE, margin=0.03, budget_s=60)
    path = store(first := calibration())
    assert stored(MACHINE, margin=0.03, budget_s=60) == first
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "no schema version"),
        ('{"schema_version": 2}', "machine: Field"),
        ('{"schema_version": 1}', "version 1 is older than 2 .* run: leantrain calibrate"),
        ('{"schema_version": 3}', "update leantrain"),
    ],
)
def test_a_damaged_calibration_is_one_sentence(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    path = path_of(MACHINE)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(Uncalibrated, match=words):
        stored(MACHINE, margin=0.03, budget_s=60)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"made": "9999-12-31T00:00:00Z"}, "dated 9999-12-31, which is in the future"),
        ({"made": (NOW + timedelta(days=3)).isoformat()}, "which is in the future"),
        ({"made": "2026-01-01T00:00:00"}, "made: Input should have timezone info"),
        ({"unchanged": [{"verdict": "equivalent", "pairs": [1e308, 0.0], "seconds": 1.0}]}, "unchanged.0.pairs.0"),
        ({"planted": [{"verdict": "regressed", "pairs": [-50.0], "seconds": 1.0}]}, "planted.0.pairs.0"),
        ({"planted": [{"verdict": "regressed", "pairs": ["NaN"], "seconds": 1.0}]}, "planted.0.pairs.0"),
        ({"unchanged": [{"verdict": "equivalent", "pairs": [0.0], "seconds": 1e300}]}, "unchanged.0.seconds"),
        ({"unchanged": [{"verdict": "equivalent", "pairs": [], "seconds": 1.0}]}, "unchanged.0.pairs"),
        ({"margin": "Infinity"}, "margin"),
        ({"budget_s": -1.0}, "budget_s"),
    ],
)
def test_what_no_calibration_can_say_is_damage_and_never_valid(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "cache"))
    for path in (path_of(MACHINE), tmp_path / "results" / MACHINE.name / "calibration.json"):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(json.loads(calibration().model_dump_json()) | changes))
    with pytest.raises(Uncalibrated) as caught:
        stored(MACHINE, margin=0.03, budget_s=60)
    assert words in str(caught.value) and "run: leantrain calibrate" in str(caught.value)
    shown, (problem,) = beside(tmp_path / "results")
    assert not shown and words in problem


def test_a_pipe_or_a_loop_of_links_in_place_of_a_calibration_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "calibration.json")
    (tmp_path / "m").mkdir()
    (tmp_path / "calibration.json").rename(tmp_path / "m" / "calibration.json")
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "calibration.json").symlink_to("calibration.json")
    pipe, loop = beside(tmp_path)[1]
    assert "it is no regular file" in pipe and "symbolic links" in loop


def test_a_calibration_is_continued_with_its_own_settings_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    with pytest.raises(Uncalibrated, match="no calibration to continue"):
        begun(MACHINE, JOB, margin=0.03, budget_s=60)
    store(first := calibration(gates=3, caught=1, planted=1))
    assert begun(MACHINE, JOB, margin=0.03, budget_s=60) == first
    for job, margin, budget_s in ((timed_job("cpu", 2), 0.03, 60), (JOB, 0.05, 60), (JOB, 0.03, 30)):
        with pytest.raises(Uncalibrated, match="other settings"):
            begun(MACHINE, job, margin=margin, budget_s=budget_s)
    store(calibration(made=NOW - timedelta(days=8)))
    with pytest.raises(Uncalibrated, match="older than 7 days"):
        begun(MACHINE, JOB, margin=0.03, budget_s=60)


def test_only_the_gates_that_are_missing_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = []

    def gate(*_: Any, slower: float, **__: Any) -> GateTiming:
        run.append(slower)
        return GateTiming(Decision("regressed" if slower else "equivalent", None), (slower,) * 6, 1.0)

    monkeypatch.setattr("suite.guard.calibration.gate", gate)
    monkeypatch.setattr("suite.guard.calibration._fresh", lambda *_: nullcontext((None, None)))
    earlier = calibration(gates=3, caught=1, planted=1, made=NOW - timedelta(days=1))
    wanted: dict[str, Any] = {"gates": 5, "planted": 2, "margin": 0.03, "budget_s": 60.0}
    continued = calibrate(tmp_path, MACHINE, JOB, earlier=earlier, **wanted)
    assert sorted(run) == [0.0, 0.0, 0.1]
    assert (len(continued.unchanged), len(continued.planted), continued.made) == (5, 2, earlier.made)
    assert continued.unchanged[:3] == earlier.unchanged
    assert calibrate(tmp_path, MACHINE, JOB, earlier=continued, **wanted) == continued
