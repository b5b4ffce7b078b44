"""Files of our own: what a killed process left half written goes with the next one that is written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from suite.record.files import YOUNG_S, replacing


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with replacing(path) as partial:
        partial.write_text("old")
    with pytest.raises(OSError, match="disk"), replacing(path) as partial:
        partial.write_text("ne")
        raise OSError("disk")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def killed_while_it_writes(path: Path) -> None:
    with replacing(path) as partial:
        partial.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_is_removed_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    process = multiprocessing.get_context("fork").Process(target=killed_while_it_writes, args=(path,))
    process.start()
    process.join()
    (left,) = tmp_path.iterdir()
    own = path.with_name(f".{path.name}.{os.getppid()}.partial")
    other = path.with_name(".other.jsonl.999999999.partial")
    for each in (own, other):
        each.write_text("another's")
    with replacing(path) as partial:
        partial.write_text("young")
    assert left.exists(), "another machine may be writing it"
    past_s = time.time() - 2 * YOUNG_S
    for each in (left, own, other):
        os.utime(each, (past_s, past_s))
    with replacing(path) as partial:
        partial.write_text("whole")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, own.name, other.name])
    assert path.read_text() == "whole"
