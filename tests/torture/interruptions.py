"""``leantrain run`` ended at random moments: by ``kill -9`` of its group and of itself alone, and by each signal.

Each trial ends a run, looks for what it left, ends it again, and lets it come to its end: all that was stored before is
there, every seed once, and nothing else is left. A signal that can be handled comes after the command's first line:
before it, Python itself is still loading.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests import plugin
from tests.torture import Row, Scale, row, unavailable
from tests.torture.command import LIMIT_S, SHORT, Place, at_once, place

RUN = ("run", *SHORT, "-t", "twin")
LATEST_S = 30.0  # of an idle machine's run, start-up included
TOLD = b"interrupted; what was measured is kept"


def attack(scale: Scale) -> Iterator[Row]:
    kills: list[tuple[str, int, Callable[[random.Random], str]]] = [
        ("kill -9 of the whole group during a run", 100, lambda coin: ended(coin, signal.SIGKILL, group=True)),
        ("SIGKILL of the command alone", 20, lambda coin: ended(coin, signal.SIGKILL, group=False)),
        *((f"{how.name} during a run", 20, lambda coin, how=how: ended(coin, how, group=False))
          for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        ("kill -9 of the fork server while it loads", 10, lambda coin: without_server(coin)),
        ("a temporary folder with a path of 110 characters", 1, lambda coin: far_away()),
    ]  # fmt: skip
    for test, usual, trial in kills:
        if not os.path.isdir("/proc/self"):
            yield unavailable(test, "processes are found in /proc")
            continue
        with at_once() as pool:
            yield row(test, Counter(pool.map(trial, map(random.Random, range(scale.trials(usual))))))


def ended(coin: random.Random, how: signal.Signals, group: bool) -> str:
    """One trial, in words."""
    with place({"twin": "pass"}) as at:
        command = at.start(*RUN)
        if how != signal.SIGKILL and command.stderr:
            command.stderr.readline()
        try:
            told = command.communicate(timeout=coin.uniform(1.0, LATEST_S))[1]
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(command.pid, how)
            told = command.communicate(timeout=LIMIT_S)[1]
        if b"Traceback" in told or b"Aborted" in told:
            return f"a traceback: {told.splitlines()[-1].decode()}"
        if left := at.left():
            return left
        if how != signal.SIGKILL and at.folders():
            return "a temporary folder left"
        if command.returncode not in (0, -how, 128 + how):
            return f"exit code {command.returncode}"
        return comes_to_its_end(at)


def comes_to_its_end(at: Place) -> str:
    """What the next run makes of what is there, in words."""
    before = at.ids()
    again = at.start(*RUN)
    told = again.communicate(timeout=LIMIT_S)[1]
    if again.returncode:
        return f"the next run ended with {again.returncode}: {told.splitlines()[-1].decode()}"
    if lost := len(before - at.ids()):
        return f"{lost} records lost"
    learned = sorted((each.stack, each.seed) for each in plugin.records(at.results).learned)
    if learned != [("baseline", 0), ("baseline", 1), ("twin", 0)]:  # whose other seeds are the reference's
        return f"seeds {learned}"
    return at.left() or ("a temporary folder left" if at.folders() else "held")


def without_server(coin: random.Random) -> str:
    """The fork server is killed once while it loads."""
    with place({"twin": "pass"}) as at:
        command = at.start(*RUN)
        end_s = time.monotonic() + LIMIT_S
        while not (servers := [each for each in at.processes() if b"forkserver" in _called(each)]):
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


def far_away() -> str:
    """Everything as always, with a long TMPDIR."""
    with place({"twin": "pass"}) as at, tempfile.TemporaryDirectory(prefix="x" * 100, dir="/tmp") as far:
        at.environment["TMPDIR"] = far
        return comes_to_its_end(at)


def _called(process: int) -> bytes:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
