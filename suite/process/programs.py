"""Runs processes that compile or run kernels; they end, with all that they started, where who waits for them ends."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from suite.process.processes import end_session

_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_ending = False


def finished(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Returns what a command gave, once it has ended. Raises TimeoutExpired after ``limit_s``, when it is ended, and
    RuntimeError where :func:`ending_with` ended it."""
    with _lock:
        if _ending:
            raise RuntimeError("it was not begun: the command is being ended")
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        _running.add(process)
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        _end(process)
        process.wait()
        with _lock:
            _running.discard(process)
    if _ending:
        raise RuntimeError("it was ended with the command")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def ending_with() -> Iterator[None]:
    """Where an error ends the block (Ctrl-C, a signal), those that run in other threads are ended, and none begins."""
    global _ending
    try:
        yield
    except BaseException:
        with _lock:
            _ending = True
            for process in _running:
                _end(process)
        raise


def begin_anew() -> None:
    """Lets processes begin again, after :func:`ending_with`, once its threads are done."""
    global _ending
    _ending = False


def _end(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        end_session(process.pid)
