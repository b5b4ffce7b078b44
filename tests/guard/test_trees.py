"""Two trees side by side: what could make one process faster than the other without being code is the same in both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from suite.measure.comparison import silent

from suite.guard.check import Selection, against_revision
from suite.guard.trees import ADDR_NO_RANDOMIZE, RevisionError, TreeWorker


@pytest.mark.skipif(sys.platform != "linux", reason="memory layouts are fixed on Linux only")
def test_workers_of_two_trees_start_with_one_layout(tmp_path: Path) -> None:
    trees = [tmp_path / "a", tmp_path / "a_longer_name" / "deeper"]
    for tree in trees:
        tree.mkdir(parents=True)
    with TreeWorker(trees[0]) as old, TreeWorker(trees[1]) as new:
        processes = [Path("/proc") / str(worker._process.pid) for worker in (old, new)]
        environments = [(process / "environ").read_bytes() for process in processes]
        personalities = [int((process / "personality").read_text(), 16) for process in processes]
    assert len(environments[0]) == len(environments[1])
    assert all(b"PYTHONHASHSEED=0" in each for each in environments)
    if any(each & ADDR_NO_RANDOMIZE for each in personalities):  # some containers forbid it, to all alike
        assert all(each & ADDR_NO_RANDOMIZE for each in personalities)
    else:
        pytest.skip("this system does not let a process fix its addresses (personality(2) is forbidden)")


def test_a_revision_of_an_older_layout_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "__init__.py").touch()
    git("init")
    git("add", "suite")
    git("commit", "-m", "one")
    with pytest.raises(RevisionError, match=r"^revision HEAD: it is older than .*; compare with a later revision$"):
        against_revision("HEAD", tmp_path, Selection(), None, silent)
