"""A run that starts badly: its fork server is killed while it loads, or its temporary folder has a long path."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.torture import Row, Scale
from tests.torture.command import LIMIT_S, place
from tests.torture.interruptions import RUN, comes_to_its_end, made


def attack(scale: Scale) -> Iterator[Row]:
    yield made("kill -9 of the fork server while it loads", scale.trials(10), without_server)
    yield made("a temporary folder with a path of 110 characters", 1, far_away)


def without_server(coin: random.Random) -> str:
    """The fork server is killed once while it loads."""
    with place({"twin": "pass"}) as at:
        command = at.start(*RUN)
        end_s = time.monotonic() + LIMIT_S
        while not (servers := [each for each in at.processes() if b"suite.process.zygote" in _called(each)]):
            if command.poll() is not None or time.monotonic() > end_s:
                break
            time.sleep(0.02)
        time.sleep(coin.uniform(0.0, 2.0))
        for each in servers:
            os.kill(each, signal.SIGKILL)
        told = command.communicate(timeout=LIMIT_S)[1]
        if b"Traceback" in told or b"Aborted" in told:
            return f"a traceback: {told.splitlines()[-1].decode()}"
        return at.left() or comes_to_its_end(at)


def far_away(_: random.Random) -> str:
    """Everything as always, with a long TMPDIR."""
    with place({"twin": "pass"}) as at, tempfile.TemporaryDirectory(prefix="x" * 100, dir="/tmp") as far:
        at.environment["TMPDIR"] = far
        return comes_to_its_end(at)


def _called(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
