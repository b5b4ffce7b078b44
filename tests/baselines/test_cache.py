"""The cache under faults: two processes at once, damage of several kinds, a failing build, an unwritable place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from baselines import cache
from suite.record.files import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "cache"))


def _counting(tmp_path: Path):
    def build(folder: Path) -> dict[str, int]:
        with (tmp_path / "builds").open("a") as log:
            log.write("x")
        np.save(folder / "numbers.npy", np.arange(1000))
        return {"count": 1000}

    return build, lambda: len((tmp_path / "builds").read_text())


def test_is_built_once_and_found_again(tmp_path):
    build, builds = _counting(tmp_path)
    first, second = (cache.prepared({"n": 1}, build) for _ in range(2))
    assert first == second
    assert builds() == 1
    assert second.array("numbers").tolist() == list(range(1000))
    other = cache.prepared({"n": 2}, build)
    assert builds() == 2
    assert other.sha256 == first.sha256, "the hash is of the content, not of how it was asked for"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "numbers.npy", 100),
        lambda folder: (folder / "numbers.npy").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text(json.dumps({"facts": {}, "hashes": {"a": "b"}})),
        lambda folder: _flip_last_byte(folder / "numbers.npy"),
    ],
    ids=["truncated", "missing", "torn manifest", "wrong manifest", "incomplete manifest", "flipped byte"],
)
def test_damage_is_rebuilt(tmp_path, damage):
    build, builds = _counting(tmp_path)
    whole = cache.prepared({}, build)
    damage(whole.folder)
    assert cache.prepared({}, build) == whole
    assert builds() == 2
    assert whole.array("numbers").tolist() == list(range(1000))


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_copied_cache_is_checked_by_content_and_kept(tmp_path):
    build, builds = _counting(tmp_path)
    folder = cache.prepared({}, build).folder
    os.utime(folder / "numbers.npy", (0, 0))
    cache.prepared({}, build)
    assert builds() == 1


def test_a_failed_build_leaves_nothing_and_may_be_tried_again(tmp_path):
    def fail(folder: Path) -> dict[str, int]:
        (folder / "half.npy").write_bytes(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        cache.prepared({}, fail)
    assert [path.suffix for path in (cache_folder() / "data").iterdir()] in ([], [".lock"])
    build, builds = _counting(tmp_path)
    cache.prepared({}, build)
    assert builds() == 1


def test_two_processes_at_once_build_once(tmp_path):
    script = """
import sys, time
from pathlib import Path
import numpy as np
from baselines import cache
def build(folder):
    with open(sys.argv[1], "a") as log: log.write("x")
    time.sleep(0.5)  # long enough that the other process asks meanwhile
    np.save(folder / "numbers.npy", np.arange(1000))
    return {}
Path(sys.argv[2]).touch()
while not all(Path(p).exists() for p in sys.argv[2:]): time.sleep(0.01)
print(int(cache.prepared({}, build).array("numbers").sum()))
"""
    ready = [str(tmp_path / name) for name in ("a", "b")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "builds"), *order], stdout=subprocess.PIPE, text=True
        )
        for order in (ready, ready[::-1])
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["499500", "499500"]
    assert (tmp_path / "builds").read_text() == "x"


def test_content_hash_follows_content_not_place_or_time(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("same")
    a, b = tmp_path / "a" / "x", tmp_path / "b" / "x"
    os.utime(b, (0, 0))
    assert cache.content_hash({"x": a}) == cache.content_hash({"x": b}) != cache.content_hash({"y": a})
    before = cache.content_hash({"x": a})
    a.write_text("diff")
    assert cache.content_hash({"x": a}) != before
    for record in (cache_folder() / "hashes").iterdir():
        record.write_text("not a hash")
    assert cache.content_hash({"x": b}) == before


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(PermissionError, match="LEANTRAIN_CACHE"):
        cache.prepared({}, lambda folder: {})


def test_writing_to_an_array_harms_neither_process_nor_file(tmp_path):
    build, _ = _counting(tmp_path)
    found = cache.prepared({}, build)
    found.array("numbers")[:] = 0
    assert cache.prepared({}, build).array("numbers").sum() == 499500
