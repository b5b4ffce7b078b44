"""Two real gloo ranks over loopback, each a process of a script, for fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

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
