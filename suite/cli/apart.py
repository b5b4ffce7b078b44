"""Runs a command whose work runs a technique's or a model's code in a process apart, which is watched.

::

    command ── the same, forked before any library is loaded: reads, counts, prints
       │           │
       └─ waits ◄──┘ a line for every step that it reports

Its output is its own. Where it crashes, or says nothing for so long that it never will, what waits says so in one
sentence and ends what is left: no segfault and no endless loop of a technique's is the command's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from suite.record.text import printable

SILENCE_S = {
    "list": 120.0,
    "apply": 300.0,
    "count": 900.0,
    "plan": 900.0,
    "leaderboard": 1800.0,
    "history": 1800.0,
    "claims": 1800.0,
    "kernels": 7200.0,
    "study": 21600.0,
}
"""Commands that load or run techniques, their studies and kernels, and models of users, themselves, and how long they
may be silent. All others ask contenders, which are processes of their own."""
RUN_FAILED = 5
PR_SET_PDEATHSIG = 1  # prctl(2)
LONGEST_LABEL = 200
_report: int | None = None


def beat(label: str) -> None:
    """Tells whoever waits that the work goes on, and at what."""
    if _report is not None:
        with suppress(OSError):
            os.write(_report, printable(label)[:LONGEST_LABEL].encode() + b"\n")


def supervised(arguments: Sequence[str], work: Callable[[], object], silence_s: float | None = None) -> object:
    """Returns ``work()``, in a process of its own where the command ``arguments`` is one of those: does not return
    then.

    Where the system cannot fork, or nobody waits (a completion), it runs here.
    """
    limit_s = silence_s or SILENCE_S.get(_work_of(arguments))
    asks = "--help" in arguments or any(name.endswith("_COMPLETE") for name in os.environ)
    if limit_s is None or asks or not hasattr(os, "fork"):
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    heard, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        _begin(writing_end)
        return work()
    os.close(writing_end)
    code, why = _waited(child, heard, limit_s)
    if why:
        if "--json" in arguments:
            print(json.dumps({"error": why, "exit_code": code}))
        print(f"leantrain: {why}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work_of(arguments: Sequence[str]) -> str:
    """Returns the command whose work it is: a check of the kernels alone does what their own does."""
    command = arguments[0] if arguments else ""
    return "kernels" if command == "check" and "--kernels" in arguments else command


def _begin(writing_end: int) -> None:
    """Runs in the child: it ends with who waits for it."""
    global _report
    _report = writing_end
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _waited(child: int, heard: int, limit_s: float) -> tuple[int, str]:
    """Returns the exit code of the child, and what to say of its end where it did not say it itself."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # the child puts away what it began, and ends
        if signal.getsignal(signal_number) != signal.SIG_IGN:
            signal.signal(signal_number, lambda number, frame: _sent(child, number))
    doing, last_s = "", time.monotonic()
    while True:
        left_s = last_s + limit_s - time.monotonic()
        if left_s <= 0:
            _sent(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return RUN_FAILED, f"no sign of life for {limit_s:g} s{doing}: a technique or a model hangs"
        if select.select([heard], [], [], left_s)[0]:
            last_s = time.monotonic()
            if not (said := os.read(heard, 1 << 16)):
                break
            doing = f" after {said.splitlines()[-1].decode('utf-8', 'replace')!r}"
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):  # it closes the pipe as it ends
        if time.monotonic() > last_s + limit_s:
            _sent(child, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(ended[1])
    if code >= 0:
        return code, ""
    name = signal.Signals(-code).name
    return RUN_FAILED, f"its process died of {name}{doing}: a technique or a model did that, or the system ended it"


def _sent(child: int, number: int) -> None:
    with suppress(OSError):
        os.kill(child, number)
