"""``leantrain run`` ended at random moments, as :mod:`tests.torture.kills` and :mod:`tests.torture.signals` do.

Each trial ends a run, looks for what it left, and lets the next one come to its end: all that was stored before is
there, every seed once, and nothing else is left. A signal that can be handled comes after the command's first line:
before it, Python itself is still loading.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable

from tests import plugin
from tests.torture import Row, row, unavailable
from tests.torture.command import LIMIT_S, SHORT, Place, at_once, place

RUN = ("run", *SHORT, "-t", "twin")
LATEST_S = 30.0  # of an idle machine's run, start-up included


def made(test: str, trials: int, trial: Callable[[random.Random], str]) -> Row:
    """The row of so many trials, as many side by side as there are cores."""
    if not os.path.isdir("/proc/self"):
        return unavailable(test, "processes are found in /proc")
    with at_once() as pool:
        return row(test, Counter(pool.map(trial, map(random.Random, range(trials)))))


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
