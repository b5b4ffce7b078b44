"""Two trees side by side: what could make one process faster than the other without being code is the same in both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.guard.trees import ADDR_NO_RANDOMIZE, TreeWorker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory layouts are fixed on Linux only")


def test_workers_of_two_trees_start_with_one_layout(tmp_path: Path) -> None:
    trees = [tmp_path / "a", tmp_path / "a_longer_name" / "deeper"]
    for tree in trees:
        tree.mkdir(parents=True)
    with TreeWorker(trees[0]) as old, TreeWorker(trees[1]) as new:
        processes = [Path("/proc") / str(worker.process_id) for worker in (old, new)]
        environments = [(process / "environ").read_bytes() for process in processes]
        personalities = [int((process / "personality").read_text(), 16) for process in processes]
    assert len(environments[0]) == len(environments[1])
    assert all(b"PYTHONHASHSEED=0" in each for each in environments)
    if any(each & ADDR_NO_RANDOMIZE for each in personalities):  # some containers forbid it, to all alike
        assert all(each & ADDR_NO_RANDOMIZE for each in personalities)
    else:
        pytest.skip("this system does not let a process fix its addresses (personality(2) is forbidden)")
