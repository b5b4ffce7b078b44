"""The rehearsal on the CPU: what it finds, what it keeps, where it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.guard import rehearsal
from suite.guard.rehearsal import Outcome, code_key, rehearse, report
from suite.process.child import ContenderFailed


def names(found: list[Outcome]) -> list[tuple[str, str, str]]:
    return [(each.part, each.name, each.status) for each in found]


def test_steps_are_made_in_processes_and_what_was_found_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "rehearsal.jsonl"
    found, late = rehearse("cpu", 1, 5, file, ["lion", "zero1"], parts=("step",))
    assert names(found) == [("step", "baseline", "works"), ("step", "lion", "works"), ("step", "zero1", "works")]
    assert not late and all(each.reason.startswith("losses ") for each in found)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:2]) + "\n" + lines[2][:30])  # cut off in the middle of its last line
    tried = []

    def fails(setting: object, stack: str) -> str:
        tried.append(stack)
        raise ContenderFailed("out_of_memory", "no room")

    monkeypatch.setattr(rehearsal, "_steps", fails)
    found, late = rehearse("cpu", 1, 5, file, ["lion", "zero1"], parts=("step",))
    assert len(tried) == 1 and not late
    assert names(found).count(("step", tried[0], "out_of_memory")) == 1
    assert len([line for line in file.read_text().splitlines() if line.startswith("{") and line.endswith("}")]) == 3
    monkeypatch.setattr(rehearsal, "code_key", lambda: "another")
    rehearse("cpu", 1, 5, file, ["lion"], parts=("step",))
    assert len(tried) == 3  # of other code nothing is known


def test_nothing_begins_after_its_time(tmp_path: Path) -> None:
    found, late = rehearse("cpu", 1, 0, tmp_path / "file", ["lion"])
    assert not found
    assert [part for part, _ in late] == ["step", "step", "kernel", "noise", "noise", "noise", "energy"]
    assert not (tmp_path / "file").exists()


def test_a_kernel_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from suite.kernels.bench import Examination

    answers = {"step": Examination(4.0, 12.0, 9.0, "off by 9 rounding units"), "other": Examination(4.0, 12.0, 1.0)}
    monkeypatch.setattr(rehearsal, "examinations", lambda peer, device, timed: answers)
    found, _ = rehearse("cpu", 1, 5, None, ["lion"], parts=("kernel",))
    assert names(found) == [("kernel", "lion", "failed")] and "off by 9" in found[0].reason
    answers["step"] = Examination(4.0, 12.0, 2.0)
    found, _ = rehearse("cpu", 1, 5, None, ["lion"], parts=("kernel",))
    assert names(found) == [("kernel", "lion", "works")] and "50%" in found[0].reason


def test_the_report_says_what_works_what_does_not_and_what_comes_next() -> None:
    found = [
        Outcome("step", "baseline", "works"),
        Outcome("step", "lion", "works"),
        Outcome("step", "sam", "failed", "RuntimeError: two devices"),
        Outcome("step", "zero1", "unavailable", "needs 2 GPUs, this machine has 1"),
        Outcome("noise", "gpt nano 0", "works", "equal processes differ by +0.1%"),
    ]
    said = report(found, [("energy", "cuda")], "cuda", 1)
    assert said["works"] == ["step: 2 of 4: baseline lion", "noise gpt nano 0: equal processes differ by +0.1%"]
    assert said["does not work"] == ["step sam: failed: RuntimeError: two devices"]
    assert said["cannot be had here"] == ["step zero1: unavailable: needs 2 GPUs, this machine has 1"]
    assert said["no time was left for"] == ["energy cuda"]
    plan = said["plan for the rest"]
    assert "again with the same file" in plan[0] and "mend" in plan[1] and "kernels --device cuda" in plan[2]
    assert "measure the 1 techniques" in plan[-1] and "--size base" in plan[-1]


def test_the_code_key_changes_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    module = tmp_path / "some_package" / "__init__.py"
    module.write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_key(("some_package",))
    assert before == code_key(("some_package",))
    module.write_text("x = 2")
    assert before != code_key(("some_package",))


def test_findings_are_plain_lines(tmp_path: Path) -> None:
    file = tmp_path / "file"
    stamp = {"machine": "m", "device": "cpu", "code": "c"}
    rehearsal._append(file, Outcome("step", "lion", "works", "losses 1"), stamp)
    file.write_text(file.read_text() + "no JSON\n[1]\n" + json.dumps({"part": "step"} | stamp) + "\n")
    assert rehearsal._read(file, stamp) == {("step", "lion"): Outcome("step", "lion", "works", "losses 1")}
    assert rehearsal._read(file, stamp | {"code": "d"}) == {}
