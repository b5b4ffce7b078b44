"""The exact tier: what counts as a change and how bad, what cannot be compared, and files that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from suite.guard.regression import (
    BadReference,
    Count,
    Finding,
    Item,
    Reference,
    Setting,
    compare,
    count,
    exit_code,
    items_of,
    load,
    markdown,
    reference,
    save,
)
from suite.guard.trees import RevisionError, checked_out, top_of
from suite.measure.contender import ContenderFailed
from tests.factories import MACHINE, counters

ITEM = Item("gpt", "modern", "pretrain", "lion")
OTHER = MACHINE.model_copy(update={"key": "other", "name": "elsewhere"})


def counted(**changes: Any) -> Count:
    values: dict[str, Any] = {"data_sha256": "d" * 64, "losses": [4.0, 3.5], "counters": counters()}
    return Count(**ITEM._asdict(), **values | changes)


def made(*counts: Count, **changes: Any) -> Reference:
    return reference(MACHINE, Setting(), counts or (counted(),)).model_copy(update=changes)


def only(old: Reference, new: Reference) -> Finding:
    (found,) = compare(old, new)
    return found


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "equal", ""),
        ({"counters": counters(saved_activation_bytes=2**20 + 4)}, "regressed", "saved_activation_bytes 1,048,576 →"),
        ({"counters": counters(flops=10**9 - 1, operators=501)}, "regressed", "operators 500 → 501 (+0.20%)"),
        ({"counters": counters(communication_bytes=8)}, "regressed", "communication_bytes 0 → 8"),
        ({"counters": counters(flops=9 * 10**8)}, "improved", "(-10.00%)"),
        ({"counters": counters(parameter_count=1)}, "changed", "parameter_count"),
        ({"counters": counters(uncounted_operators={"aten.x": 2})}, "changed", "uncounted aten.x 0 → 2"),
        ({"losses": [4.0, 3.5000000000000004]}, "changed", "loss of step 2"),
        ({"losses": [4.0]}, "changed", "steps 2 → 1"),
        ({"data_sha256": "e" * 64}, "changed", "data dddd"),
        ({"losses": [3.0], "counters": counters(flops=9 * 10**8)}, "changed", "flops"),
        ({"status": "crashed", "reason": "planted"}, "failed", "crashed: planted"),
    ],
)
def test_every_change_is_found_and_weighed(changes: dict[str, Any], verdict: str, words: str) -> None:
    found = only(made(), made(counted(**changes)))
    assert found.verdict == verdict
    assert words in "; ".join([*map(str, found.changes), found.why])


def test_what_one_side_lacks_is_named() -> None:
    other = counted().model_copy(update={"stack": "sam"})
    verdicts = {each.item: each.verdict for each in compare(made(counted()), made(other))}
    assert verdicts == {"sam on gpt (modern, pretrain)": "new", "lion on gpt (modern, pretrain)": "gone"}


def test_another_machine_has_other_losses_but_the_same_counters() -> None:
    old = made(counted(losses=[4.0, 3.6]), machine=OTHER)
    found = only(old, made())
    assert (found.verdict, found.changes) == ("equal", ())
    assert "another machine (elsewhere)" in found.why
    assert only(old, made(counted(counters=counters(flops=2 * 10**9)))).verdict == "regressed"


def test_other_libraries_or_settings_are_not_comparable() -> None:
    libraries = made().libraries | {"torch": "1.0"}
    assert "counted with torch 1.0, this is" in only(made(libraries=libraries), made()).why
    found = only(made(setting=Setting(size="micro")), made())
    assert found.verdict == "not comparable"
    assert "size micro instead of nano" in found.why


def test_what_is_unavailable_on_both_sides_is_equal() -> None:
    old = made(counted(status="unavailable", reason="needs 8 GPUs", counters=None))
    assert only(old, old).verdict == "equal"
    assert only(made(counted(status="crashed")), made()).verdict == "not comparable"


@pytest.mark.parametrize(
    ("verdicts", "accept", "code"),
    [
        ([], False, 0), (["equal", "new", "improved", "equivalent"], False, 0), (["changed"], False, 1),
        (["changed", "gone"], True, 0), (["regressed"], True, 1), (["failed", "unfit"], False, 5),
        (["unfit", "inconclusive"], False, 4), (["inconclusive"], False, 3), (["not comparable"], False, 3),
    ],
)  # fmt: skip
def test_exit_codes(verdicts: list[Any], accept: bool, code: int) -> None:
    assert exit_code([Finding("x", "exact", each) for each in verdicts], accept) == code


def test_a_failure_is_a_row() -> None:
    def dies(command: str, **arguments: Any) -> None:
        raise ContenderFailed("out_of_memory", "planted")

    assert count(ITEM, Setting(), dies) == Count(**ITEM._asdict(), status="out_of_memory", reason="planted")


def test_items_are_the_cards_baselines_and_the_plain_ones() -> None:
    offer = {
        "baselines": ["gpt", "vit"],
        "techniques": {"a": {"baselines": ["gpt"], "task": "pretrain"}, "b": {"baselines": ["vit"], "task": "adapt"}},
    }
    names = {(each.baseline, each.task, each.stack) for each in items_of(offer, (), (), ("modern",))}
    assert names == {
        ("gpt", "pretrain", "baseline"),
        ("vit", "pretrain", "baseline"),
        ("gpt", "pretrain", "a"),
        ("vit", "adapt", "b"),
    }
    assert [each.stack for each in items_of(offer, ("a:x=1", "gone"), ("gpt",), ("modern",))] == ["baseline", "a:x=1"]


def test_a_reference_survives_its_file_to_the_bit(tmp_path: Path) -> None:
    stored = made(counted(losses=[0.1 + 0.2, 1 / 3]))
    save(stored, tmp_path / "ref.json")
    assert load(tmp_path / "ref.json") == stored
    assert os.listdir(tmp_path) == ["ref.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "damaged"), ("{", "damaged"), ("[1]", "damaged"), ("[" * 10**5, "damaged"), ("{}", "Field required"),
        (json.dumps({"schema_version": 99}), "newer than 1; update leantrain"),
    ],
)  # fmt: skip
def test_a_bad_reference_is_one_sentence(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ref.json"
    path.write_text(content)
    with pytest.raises(BadReference, match=words) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_summary_cannot_be_broken_by_what_it_quotes() -> None:
    found = [Finding("x", "exact", "failed", "<script>|\n| a"), Finding("y", "exact", "equal")]
    text = markdown(found, "main|x")
    assert "<script>" not in text
    assert "| x | exact | **failed** | &lt;script>\\| \\| a |" in text
    assert "1 item exactly equal." in text


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
    (_, item) = items_of(offer, ["lion:factor=1e+1"], [], ["modern"])
    assert item.stack == "lion:factor=1e+1"
