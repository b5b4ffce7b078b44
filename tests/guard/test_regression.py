"""The exact tier: what counts as a change and how bad, what cannot be compared, and files that cannot be read."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from suite.guard.findings import Finding
from suite.guard.regression import (
    BadReference,
    CountedJob,
    Reference,
    compare,
    count,
    exit_code,
    jobs_of,
    load,
    markdown,
    reference,
    save,
    tally,
)
from suite.guard.trees import RevisionError, checked_out, top_of
from suite.judge.verdicts import ChangeVerdict
from suite.process.child import ContenderFailed
from suite.record.job import Job, Setting
from tests.factories import MACHINE, counters

JOB = Job(setting=Setting(baseline="gpt", steps=4), stack="lion")
OTHER = MACHINE.model_copy(update={"key": "other", "name": "elsewhere"})


def counted(job: Job = JOB, **changes: Any) -> CountedJob:
    values: dict[str, Any] = {"data_sha256": "d" * 64, "losses": [4.0, 3.5], "counters": counters()}
    return CountedJob(job=job, **values | changes)


def referring(*jobs: CountedJob, **changes: Any) -> Reference:
    return reference(MACHINE, jobs or (counted(),)).model_copy(update=changes)


def only(old: Reference, new: Reference) -> Finding:
    (finding,) = compare(old, new)
    return finding


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "equal", ""),
        ({"counters": counters(saved_activation_bytes=2**20 + 4)}, "regressed", "saved_activation_bytes 1,048,576 →"),
        ({"counters": counters(flops=10**9 - 1, operators=501)}, "regressed", "operators 500 → 501 (+0.20%)"),
        ({"counters": counters(communication_bytes=8)}, "regressed", "communication_bytes 0 → 8"),
        ({"counters": counters(flops=9 * 10**8)}, "improved", "(-10.00%)"),
        ({"counters": counters(parameter_count=1)}, "changed", "parameter_count"),
        ({"counters": counters(uncounted_operators={"aten.x": 2})}, "changed", "uncounted_operators.aten.x 0 → 2"),
        ({"counters": counters(compiled=True)}, "changed", "compiled False → True"),
        ({"losses": [4.0, 3.5000000000000004]}, "changed", "loss of step 2"),
        ({"losses": [4.0]}, "changed", "steps 2 → 1"),
        ({"data_sha256": "e" * 64}, "changed", "data dddd"),
        ({"losses": [3.0], "counters": counters(flops=9 * 10**8)}, "changed", "flops"),
        ({"status": "crashed", "reason": "planted"}, "failed", "crashed: planted"),
    ],
)
def test_every_change_is_found_and_weighed(changes: dict[str, Any], verdict: str, words: str) -> None:
    finding = only(referring(), referring(counted(**changes)))
    assert finding.verdict == verdict
    assert words in finding.details


def test_what_one_side_lacks_is_named() -> None:
    other = counted(JOB.model_copy(update={"stack": "sam"}))
    verdicts = {each.item: each.verdict for each in compare(referring(counted()), referring(other))}
    assert verdicts == {"sam on gpt (modern, pretrain)": "new", "lion on gpt (modern, pretrain)": "gone"}


def test_another_machine_has_other_losses_but_the_same_counters() -> None:
    old = referring(counted(losses=[4.0, 3.6]), machine=OTHER)
    finding = only(old, referring())
    assert (finding.verdict, finding.changes) == ("equal", ())
    assert "another machine (elsewhere)" in finding.why
    assert only(old, referring(counted(counters=counters(flops=2 * 10**9)))).verdict == "regressed"


def test_other_libraries_are_not_comparable() -> None:
    libraries = referring().libraries | {"torch": "1.0"}
    assert "counted with torch 1.0, this is" in only(referring(libraries=libraries), referring()).why


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (JOB.model_copy(update={"setting": JOB.setting.but(size="micro")}), "size micro instead of nano"),
        (JOB.model_copy(update={"setting": JOB.setting.but(steps=8, threads=2)}), "steps 8 instead of 4, threads 2 in"),
        (JOB.model_copy(update={"seed": 1}), "seed 1 instead of 0"),
    ],
)
def test_another_job_of_the_same_item_is_not_comparable(job: Job, words: str) -> None:
    finding = only(referring(counted(job)), referring())
    assert finding.verdict == "not comparable"
    assert words in finding.why


def test_what_is_unavailable_on_both_sides_is_equal() -> None:
    old = referring(counted(status="unavailable", reason="needs 8 GPUs", counters=None))
    assert only(old, old).verdict == "equal"
    assert only(referring(counted(status="crashed")), referring()).verdict == "not comparable"


@pytest.mark.parametrize(
    ("verdicts", "accept", "code"),
    [
        ([], False, 0),
        (["equal", "new", "improved", "equivalent"], False, 0),
        (["changed"], False, 1),
        (["changed", "gone"], True, 0),
        (["regressed"], True, 1),
        (["failed", "unfit"], False, 5),
        (["unfit", "inconclusive"], False, 4),
        (["inconclusive"], False, 3),
        (["not comparable"], False, 3),
    ],
)
def test_exit_codes(verdicts: list[Any], accept: bool, code: int) -> None:
    assert exit_code([Finding("x", "exact", each) for each in verdicts], accept) == code


def test_a_failure_is_a_row() -> None:
    def dies(command: str, **arguments: Any) -> None:
        raise ContenderFailed("out_of_memory", "planted")

    assert count(JOB, dies) == CountedJob(job=JOB, status="out_of_memory", reason="planted")


def test_jobs_are_the_cards_baselines_and_the_plain_ones() -> None:
    offer = {
        "baselines": ["gpt", "vit"],
        "techniques": {"a": {"baselines": ["gpt"], "task": "pretrain"}, "b": {"baselines": ["vit"], "task": "adapt"}},
    }
    jobs = jobs_of(offer, (), (), ("modern",), size="micro", threads=2)
    assert {(each.setting.size, each.setting.threads) for each in jobs} == {("micro", 2)}
    names = {(each.setting.baseline, each.setting.task, each.stack) for each in jobs}
    assert names == {
        ("gpt", "pretrain", "baseline"),
        ("vit", "pretrain", "baseline"),
        ("gpt", "pretrain", "a"),
        ("vit", "adapt", "b"),
    }
    assert [each.stack for each in jobs_of(offer, ("a:x=1", "gone"), ("gpt",), ("modern",))] == ["baseline", "a:x=1"]


def test_a_reference_survives_its_file_to_the_bit(tmp_path: Path) -> None:
    stored = referring(counted(losses=[0.1 + 0.2, 1 / 3]))
    save(stored, tmp_path / "ref.json")
    assert load(tmp_path / "ref.json") == stored
    assert os.listdir(tmp_path) == ["ref.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[1]", "damaged"),
        ("[" * 10**5, "damaged"),
        ("{}", "no schema version"),
        (json.dumps({"schema_version": 2}), "leantrain: Field required"),
        (json.dumps({"schema_version": 99}), "newer than 2; update leantrain"),
        (json.dumps({"schema_version": 1}), "older than 2 .*; save it again with: leantrain check --save"),
    ],
)
def test_a_bad_reference_is_one_sentence(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ref.json"
    path.write_text(content)
    with pytest.raises(BadReference, match=words) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_summary_cannot_be_broken_by_what_it_quotes() -> None:
    findings = [Finding("x", "exact", "failed", "<script>|\n| a"), Finding("y", "exact", "equal")]
    text = markdown(findings, "main|x")
    assert "<script>" not in text
    assert "| `x` | exact |  |  |  | **failed** |\n\n- `x`, exact: &lt;script&gt;\\| \\| a\n" in text
    assert text.splitlines()[0].endswith(": 1 failed, 1 item exactly equal; speed: not checked")


SPEEDS = {
    "regressed": "1 slower",
    "equivalent": "1 not slower",
    "improved": "1 faster",
    "inconclusive": "1 cannot tell",
    "equal": "1 of unchanged code",
    "unfit": "not checked",
    "failed": "not checked",
    "not checked": "not checked",
}


@pytest.mark.parametrize(("verdict", "words"), SPEEDS.items())
def test_the_first_line_says_what_is_known_of_speed(verdict: ChangeVerdict, words: str) -> None:
    """Beside what is exact: that this is equal says nothing of speed."""
    exact = Finding("x", "exact", "equal")
    findings = [exact, Finding("x", "timing", verdict)]
    assert tally(findings) == f"1 item exactly equal; speed: {words}"
    assert markdown(findings, "main").splitlines()[0].endswith(f": {tally(findings)}")
    assert tally([exact]) == "1 item exactly equal; speed: not checked"


def test_a_summary_has_a_row_for_every_number_that_differs() -> None:
    changed = counted(counters=counters(flops=2 * 10**9, saved_activation_bytes=2**19), losses=[4.0, 3.0])
    rows = [line for line in markdown(compare(referring(), referring(changed)), "main").splitlines() if "lion" in line]
    item = "lion on gpt (modern, pretrain)"
    assert rows == [
        f"| {item} | FLOPs of a step | 1,000,000,000 | 2,000,000,000 | 2 | **regressed** |",
        f"| {item} | saved for backward | 1,048,576 | 524,288 | 0.5 | **improved** |",
        f"| {item} | loss of step 2 | 3.5 | 3.0 | 0.857143 | **changed** |",
    ]


def test_a_summary_has_no_link_and_no_image() -> None:
    words = "[x](https://evil.example) ![i](//evil.example/i.png) a@evil.example \x1b[2J\u202e"
    text = markdown([Finding(words, "exact", "failed", words)], words)
    assert not re.search(r"(?<!\\)[\[\]]|://|[^`\s]*@[^`\s]* ", text.replace("`a@evil.example`", ""))
    assert all(each.isprintable() for each in text.replace("\n", ""))


def test_a_revision_is_checked_out_beside_and_removed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("old")
    git("add", "file")
    git("commit", "-m", "one")
    (tmp_path / "file").write_text("new")
    with checked_out("HEAD", top_of(tmp_path)) as tree:
        assert (tree / "file").read_text() == "old"
    assert not tree.exists()
    assert not list((tmp_path / ".git" / "worktrees").glob("*"))
    for unknown in ("nonsense", "--help"):
        with pytest.raises(RevisionError, match="neither a file nor a revision"), checked_out(unknown, tmp_path):
            pass


def test_a_value_with_an_exponent_does_not_end_a_stack() -> None:
    offer = {"baselines": ["gpt"], "techniques": {"lion": {"baselines": ("gpt",), "task": "pretrain"}}}
    (_, job) = jobs_of(offer, ["lion:factor=1e+1"], [], ["modern"])
    assert job.stack == "lion:factor=1e+1"
