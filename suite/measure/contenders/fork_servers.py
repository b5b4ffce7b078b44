"""Runs fork servers: processes that have the libraries loaded, and fork contenders in milliseconds.

::

    command ── server of the portable arithmetic ── contenders that count and learn
            └─ server of one timing ── its contenders, in lock-step

What is decided when a process starts holds for all that it forks: the arithmetic of its libraries
(:mod:`suite.record.numerics`), the order of hashes, where libraries, heap and stack lie. So what is off the clock
shares one server of each arithmetic, and every set of processes that is timed has a server of its own: contenders of
one server share a layout, which favours one side of them by some per cent.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import context, forkserver, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from suite.measure.contenders.processes import is_stopped
from suite.record import numerics
from suite.record.scratch import scratch

PRELOADED = ["suite.measure.contenders.server"]
STARTING, PLACING = threading.RLock(), threading.Lock()
LOADING_S, FORKING_S = 600.0, 60.0  # a server that takes longer for its libraries, or for a fork, never ends
LOOK_S = 5.0  # so often a server that is waited for is looked at: one that was stopped says nothing
LONGEST_PADDING = 4096  # bytes of the environment, which lies above the stack: a page


class Server:
    """Runs a fork server with variables of its own in its environment. It starts with its first child."""

    def __init__(self, environment: Mapping[str, str], preloaded: Sequence[str] = ()) -> None:
        # Threads that wait at OpenMP's barriers must sleep: where a neighbour takes a core, spinning made steps 4 to 14
        # times slower (measured on two shared cores). It counts only before the library is loaded.
        # A server that has asked CUDA itself for its GPUs cannot lend one to its children; NVML may be asked.
        # The profiler, which looks for threads that no counter sees, remarks each time that it begins and ends.
        own = {
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99"),
        }
        arithmetic = numerics.spelled({**os.environ, **environment})
        self.environment = own | numerics.compiled_apart(arithmetic) | dict(environment)
        self.context = context.ForkServerContext()
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload([*PRELOADED, *preloaded])
        self._answered: int | None = None  # which process has loaded its libraries

    @contextmanager
    def starting(self) -> Iterator[context.ForkServerContext]:
        """Has the processes that start meanwhile, of this context, forked here.

        They do not import ``__main__``: a contender needs nothing of it, and it may be a script without a guard, or not
        even a file (standard input). Raises OSError where no temporary folder has room for a server's socket.
        """
        _place_sockets()
        with STARTING:
            main, connect = sys.modules["__main__"], forkserver.connect_to_new_process
            sys.modules["__main__"] = ModuleType("__main__")
            forkserver.connect_to_new_process = self._connect  # type: ignore[assignment]
            try:
                yield self.context
            finally:
                sys.modules["__main__"], forkserver.connect_to_new_process = main, connect

    def begin(self) -> None:
        """Has it load its libraries, which its first child waits for: so several load side by side."""
        _place_sockets()
        with STARTING, _variables(self.environment):
            self._server.ensure_running()

    def _connect(self, handles: Sequence[int]) -> Any:
        self.begin()
        sentinel, data = self._server.connect_to_new_process(handles)
        if not self._says_something(sentinel, FORKING_S if self._answered == self._pid else LOADING_S):
            os.close(sentinel)
            os.close(data)
            raise EOFError("it did not answer, and was ended")
        self._answered = self._pid
        return sentinel, data

    def _says_something(self, sentinel: Any, limit_s: float) -> bool:
        """Tells whether it writes to the sentinel of a process (first an id, at the end an exit code). If it does not
        in time, or is stopped, it is killed, and with it its children."""
        end_s = time.monotonic() + limit_s
        while not wait([sentinel], min(LOOK_S, max(0.0, end_s - time.monotonic()))):
            if time.monotonic() >= end_s or is_stopped(self._pid):
                self.kill()
                return False
        return True

    def see_end_of(self, process: BaseProcess) -> None:
        """Waits for the end of a child that was killed."""
        if self._says_something(process.sentinel, FORKING_S):
            process.join()
        else:
            process.join(timeout=LOOK_S)  # its sentinel closes with the server

    @property
    def _pid(self) -> int | None:
        pid: int | None = self._server._forkserver_pid  # type: ignore[attr-defined]
        return pid

    def kill(self) -> None:
        """Ends it, whatever it is doing, and its children; the next child starts it anew."""
        with suppress(OSError):
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)  # nothing in it is worth the second that libraries take to leave

    def close(self) -> None:
        """Ends it, and its children."""
        self.kill()
        with suppress(OSError):
            self._server._stop()  # type: ignore[attr-defined]


class ThisProcess(Server):
    """Stands in for a server where this process itself is to be forked, with what was changed in it."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")  # type: ignore[assignment]

    def begin(self) -> None:
        """Does nothing: it has its libraries."""

    @contextmanager
    def starting(self) -> Iterator[context.ForkServerContext]:
        yield self.context

    def see_end_of(self, process: BaseProcess) -> None:
        """Waits for it: the kernel tells of its own children."""
        process.join()

    def close(self) -> None:
        """Does nothing: this process goes on."""


@cache
def shared(arithmetic: str) -> Server:
    """Returns the server of all that runs under an arithmetic. It ends with this process."""
    return Server(numerics.environment(arithmetic))


def of_one_timing(coin: random.Random) -> Server:
    """Returns a server for one set of processes: with an order of hashes, and a place of the stack, that no other
    has."""
    padding = "x" * coin.randrange(LONGEST_PADDING)
    return Server({"PYTHONHASHSEED": str(coin.randrange(2**32)), "LEANTRAIN_LAYOUT": padding})


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets those variables in this process's environment."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _place_sockets() -> None:
    """Has multiprocessing keep its sockets in this process's own folder, whose path is short enough and which goes."""
    with PLACING:
        before, folder = tempfile.tempdir, scratch()
        tempfile.tempdir = str(folder)
        try:
            util.get_temp_dir()  # made once for a process
        finally:
            tempfile.tempdir = before
