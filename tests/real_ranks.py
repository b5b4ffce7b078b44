"""Real gloo ranks over loopback: two, each a process of a script, for fixtures; or as many as one asks for, which are
forked with the libraries loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from suite.measure.contenders.deputies import failure
from suite.measure.contenders.fork_servers import shared
from suite.process.child import ContenderFailed
from suite.process.groups import Ranks
from suite.record.numerics import off_the_clock

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600


def two_of(script: Path, folder: Path, **environment: str) -> list[dict[str, Any]]:
    """What ``script RANK FOLDER`` wrote to ``FOLDER/outRANK``, by rank."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path, **environment}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"out{rank}", weights_only=True) for rank in range(2)]


class _Rank:
    """One of several, in its process."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def do(self, task: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        task(self.rank, *arguments)


class Forked(Ranks):
    """So many ranks."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._begin(shared(off_the_clock()), failure, _Rank, *((rank,) for rank in range(ranks)))

    def __enter__(self) -> Forked:
        return self

    def do(self, task: Callable[..., None], *arguments: Any) -> None:
        """Has ``task(rank, *arguments)`` done by all of them. What one raises fails the test."""
        try:
            self._all_replies("do", task, arguments, limit_s=TIMEOUT_S)
        except ContenderFailed as failed:
            raise AssertionError(f"{failed}\n{failed.details}") from None
