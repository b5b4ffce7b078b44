"""A check from end to end: what it is asked for decides what its first line says of speed, and how it ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from suite.guard import check, speed
from suite.guard.check import Selection, SpeedBudget, against_file, against_revision
from suite.guard.findings import Finding
from suite.guard.gate_worker import Worker
from suite.guard.speed import TimedSet
from suite.guard.votes import FALSE_ALARMS, Rule
from suite.measure.provenance import silent
from suite.process.child import ContenderFailed
from suite.record.job import BASELINE, Job, Setting
from tests import plugin
from tests.factories import MACHINE, counters
from tests.plugin import called

SETTING = Setting(baseline="gpt", size="pico", steps=4)
OFFER = {
    "suite": "/",
    "numerics": "native",
    "baselines": ["gpt"],
    "techniques": {name: {"baselines": ["gpt"], "task": "pretrain", "folder": "/"} for name in ("mine", "other")},
}
SAME, SLEEPS = "def after_step(self, run): pass", "def after_step(self, run): time.sleep(0.02)"


class Tree:
    """A worker of a tree, which answers at once."""

    def __init__(self, code: Mapping[str, str]) -> None:
        self.code, self.tree = code, Path("/")

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, command: str, **arguments: Any) -> Any:
        if command == "hello":
            return OFFER
        if command == "count":
            return {"data_sha256": "d", "losses": [1.0], "counters": counters().model_dump()}
        if (code := self.code.get(arguments["job"]["stack"])) is None:
            raise ContenderFailed("failed", "an older tree")
        return code


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository whose revision and working tree are stubs: ``mine`` is other code, ``other`` of a tree that does not
    say."""
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "one")
    codes = iter([{BASELINE: "a", "mine": "b"}, {BASELINE: "a", "mine": "c"}])
    monkeypatch.setattr(check, "TreeWorker", lambda tree: Tree(next(codes)))
    monkeypatch.setattr(check, "fingerprint", lambda *_: MACHINE)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_what_changed_is_timed_at_a_rate_that_its_items_share(checked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def time_sets(_: object, jobs: list[Job], rule: Rule, *, minutes: float, **__: object) -> list[TimedSet]:
        asked.append(([each.stack for each in jobs], rule, minutes))
        return [TimedSet(each, d=[0.2] * 9, e=[0.001] * 9) for each in jobs]

    monkeypatch.setattr(speed, "time_sets", time_sets)
    findings = against_revision("HEAD", checked, Selection(), SpeedBudget(0.2, 7), silent)
    assert asked == [(["mine", "other"], Rule(0.2, FALSE_ALARMS / 2), 7)]
    timed = {each.item.split()[0]: each.verdict for each in findings if each.aspect == "timing"}
    assert timed == {BASELINE: "equal", "mine": "regressed", "other": "regressed"}


def test_what_nobody_asked_for_is_not_checked(checked: Path) -> None:
    *exact, last = against_revision("HEAD", checked, Selection(), None, silent)
    assert {(each.aspect, each.verdict) for each in exact} == {("exact", "equal")}
    assert last == Finding("speed", "timing", "not checked", "ask for it with --speed")


def test_a_file_has_no_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "counted", lambda *_: check._reference(Selection(), []))
    monkeypatch.setattr(check, "load", lambda _: check._reference(Selection(), []))
    (only,) = against_file(tmp_path / "ref.json", Selection(), silent)
    assert only == Finding("speed", "timing", "not checked", "a file has no code to time; name a revision")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), None),
        (("--speed",), SpeedBudget(0.10, 10)),
        (("--slower", "5%", "--minutes", 3), SpeedBudget(0.05, 3)),
    ],
)
def test_the_command_asks_for_what_it_is_asked(
    arguments: tuple[object, ...], wanted: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def against(*given: Any) -> list[Finding]:
        asked.append(given[3])
        return [Finding("x", "exact", "equal"), Finding("x", "timing", "inconclusive", "cannot tell")]

    monkeypatch.setattr(check, "against_revision", against)
    badge, summary = tmp_path / "badge.svg", tmp_path / "summary.md"
    code, told, _ = called("check", "--against", "HEAD", *arguments, "--badge", badge, "--summary", summary)
    assert asked == [wanted] and code == 3
    assert told.splitlines()[0] == "against HEAD: 1 item exactly equal; speed: 1 cannot tell"
    assert "inconclusive; speed: 1 cannot tell" in badge.read_text()
    assert summary.read_text().splitlines()[0].endswith("1 item exactly equal; speed: 1 cannot tell")


def test_the_code_of_a_run_is_that_of_its_definitions() -> None:
    codes = {
        Worker().code(Job(setting=SETTING, stack=stack).model_dump()) for stack in (BASELINE, "lion", "lion", "sam")
    }
    assert len(codes) == 3


@pytest.mark.slow
def test_a_sleep_in_every_step_is_slower_though_exact_costs_are_equal(tmp_path: Path) -> None:
    """In real processes, of a real repository."""
    plugin.write(tmp_path, {"planted": SAME})
    env = plugin.environment(tmp_path)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    plugin.write(tmp_path, {"planted": SLEEPS})
    asked = ("check", "--against", "main", "-t", "planted", "-b", "gpt", "--size", "pico", "--speed", "--minutes", 20)
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        plugin.command(*asked, "--json", "--summary", summary),
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 1, done.stderr
    first = summary.read_text().splitlines()[0]
    assert first.endswith("2 items exactly equal; speed: 1 slower, 1 of unchanged code"), first
    timed = {each["item"].split()[0]: each for each in json.loads(done.stdout) if each["aspect"] == "timing"}
    assert (timed["planted"]["verdict"], timed[BASELINE]["verdict"]) == ("regressed", "equal")
    print(timed["planted"]["why"])
