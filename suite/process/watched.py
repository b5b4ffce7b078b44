"""Watches a process's own work, done in a fork: it tells of its steps, and ends where it crashes or hangs.

::

    command ── the same, forked before any library is loaded: works
       │           │
       └─ waits ◄──┘ a line for every step that it reports
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

from suite.process.processes import end_with_parent
from suite.record.text import printable

LONGEST_LABEL = 200
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_report: int | None = None


def beat(label: str) -> None:
    """Tells whoever waits that the work goes on, and at what."""
    if _report is not None:
        with suppress(OSError):
            os.write(_report, printable(label)[:LONGEST_LABEL].encode() + b"\n")


def watch(silence_s: float) -> int | str | None:
    """Forks this process. Returns None in the fork, which is to do the work and ends with this process; and here, once
    it has ended, its exit code, or why it has none: it crashed, or was silent for so long that it was ended."""
    global _report
    sys.stdout.flush()
    sys.stderr.flush()
    heard, writing_end = os.pipe()
    watching = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until they are handed on
    if child := os.fork():
        os.close(writing_end)
        return _waited(child, heard, silence_s)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.close(heard)
    _report = writing_end
    end_with_parent(watching, signal.SIGTERM)
    return None


def _waited(child: int, heard: int, limit_s: float) -> int | str:
    for signal_number in ENDING:  # the child puts away what it began, and ends
        if signal.getsignal(signal_number) != signal.SIG_IGN:
            signal.signal(signal_number, lambda number, frame: _sent(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    doing, last_s = "", time.monotonic()
    while True:
        left_s = last_s + limit_s - time.monotonic()
        if left_s <= 0:
            _sent(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"no sign of life for {limit_s:g} s{doing}: a technique or a model hangs"
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
        return code
    name = signal.Signals(-code).name
    return f"its process died of {name}{doing}: a technique or a model did that, or the system ended it"


def _sent(child: int, number: int) -> None:
    with suppress(OSError):
        os.kill(child, number)
